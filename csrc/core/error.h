#pragma once
// Errors are sentences, after the name of the operator that was called.

#include <stdexcept>
#include <string>

namespace tiled {

[[noreturn]] inline void fail(const char* op, const std::string& sentence) {
  throw std::runtime_error(std::string(op) + ": " + sentence);
}

}  // namespace tiled
