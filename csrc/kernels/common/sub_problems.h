#pragma once
// Sub-problems, solved one after another if there is no memory for the whole problem at once.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// Splits a float32 problem in two along its batch, or else its longer side; the first part is not
// the smaller one. Nothing if the problem is a single tile.
std::optional<std::pair<Problem, Problem>> split_in_two(const Problem& p);

// A workspace is not made smaller than this for lack of memory.
inline constexpr int64_t kSmallWorkspace = int64_t{64} << 20;

// Returns whether the driver has that much free memory. Asking it takes as long as a launch, so up
// to 1 GiB the allocator finds out, which may have memory that the driver does not know as free.
bool fits_in_free_memory(int64_t bytes);

// Calls run(part) for the parts of a problem that is split in two `times` times.
template <class Run>
void run_split(int times, const Problem& p, const Run& run) {
  const auto parts = times > 0 ? split_in_two(p) : std::nullopt;
  if (!parts) return run(p);
  run_split(times - 1, parts->first, run);
  run_split(times - 1, parts->second, run);
}

// Calls run(part, workspace) for the whole problem, or for parts that share one workspace: the most
// that bytes(part) is for any of them. Splits the problem until that fits in free memory; if the
// allocation still fails, keeps splitting while it exceeds `least`. Returns false, and runs
// nothing, if that fails too.
template <class Bytes, class Run>
bool run_sub_problems(const Problem& p, const Context& context, int64_t least, const Bytes& bytes,
                      const Run& run) {
  Problem first = p;
  int64_t needed = bytes(p);
  int times = 0;
  const auto shrink = [&] {
    const auto parts = needed > least ? split_in_two(first) : std::nullopt;
    if (!parts) return false;
    first = parts->first, needed = 0, ++times;
    // The first part need not need the most: parts that follow may be split along another side.
    run_split(times, p, [&](const Problem& part) { needed = std::max(needed, bytes(part)); });
    return true;
  };
  while (!fits_in_free_memory(needed) && shrink()) {
  }
  void* workspace;
  while ((workspace = context.allocate(needed)) == nullptr) {
    if (!shrink()) return false;
  }
  run_split(times, p, [&](const Problem& part) { run(part, static_cast<uint8_t*>(workspace)); });
  return true;
}

}  // namespace tiled::cuda
