#pragma once
// Operands of halves in lines that a tensor map can read.

#include <optional>

#include "context.h"
#include "problem.h"

namespace tiled::cuda {

// Operands that have to lie along K.
struct AlongK {
  bool a = false, b = false;
};

// The problem, of halves, with operands that are in_boxes() (problem.h). Those that are not, or do
// not lie along K where they have to, are copied by a kernel, line by line, otherwise whichever way
// their closer elements lie; nothing where there is no memory for that.
std::optional<Problem> in_lines_of_halves(const Problem& p, const Context& context,
                                          AlongK along_k = {});

}  // namespace tiled::cuda
