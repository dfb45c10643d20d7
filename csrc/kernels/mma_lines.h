#pragma once
// Operands of halves in lines that a tensor map can read.

#include <optional>

#include "context.h"
#include "problem.h"

namespace tiled::cuda {

struct LinesWanted {
  bool a = true;       // or only B's
  bool whole = false;  // that begin where L2's do
};

// The problem, of halves, with operands that are in_boxes() (problem.h), in whole lines if those
// are wanted. Others are copied by a kernel, line by line, whichever way their closer elements lie;
// and those that mma_turns_to_k() (mma.h) to lines along K. Nothing where there is no memory for
// that.
std::optional<Problem> in_lines_of_halves(const Problem& p, const Context& context,
                                          const LinesWanted& wanted);

}  // namespace tiled::cuda
