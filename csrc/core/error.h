#pragma once
// Errors are sentences that begin with the name of the called operator.

#include <stdexcept>
#include <string>

namespace tiled {

[[noreturn]] inline void fail(const char* op, const std::string& sentence) {
  throw std::runtime_error(std::string(op) + ": " + sentence);
}

}  // namespace tiled
