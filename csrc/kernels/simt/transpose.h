#pragma once
// Operands as the tensor maps of simt_tma want them: MN-major, with 16-byte aligned rows.

#include <optional>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// Returns a float32 problem with K > 0 and operands that are is_tma_aligned_mn_major(): an operand
// that is not is copied to a workspace by a kernel. If next_starts_early, the next kernel on the
// stream may start before the copy is complete (PDL). Returns nothing if there is no memory for
// the workspace.
std::optional<Problem> make_mn_major(const Problem& p, bool next_starts_early,
                                     const Context& context);

}  // namespace tiled::cuda
