#pragma once
// Problems in parts, one after another, where there is no memory for all at once.

#include <cstdint>
#include <optional>
#include <utility>

#include "core/context.h"
#include "core/problem.h"

namespace tiled::cuda {

// The problem, of float32, in two, the first not smaller, along its batch or else its longer side;
// nothing where it is one tile.
std::optional<std::pair<Problem, Problem>> split_in_two(const Problem& p);

// Smaller workspaces are asked for without a look at how much memory is free.
inline constexpr int64_t kSmallWorkspace = int64_t{64} << 20;

int64_t free_memory();
inline bool fits_in_free_memory(int64_t bytes) {
  return bytes <= kSmallWorkspace || bytes <= free_memory();
}

// Calls run(part) for the problem's parts, halved so many times.
template <class Run>
void run_split(int times, const Problem& p, const Run& run) {
  const auto halves = times > 0 ? split_in_two(p) : std::nullopt;
  if (!halves) return run(p);
  run_split(times - 1, halves->first, run);
  run_split(times - 1, halves->second, run);
}

// Calls run(part, workspace) for the whole, or else for parts that share a workspace of as many
// bytes(part) as the largest needs: by how much memory is free, and should that not be had after
// all, by halves as long as they need more than `least`. False, and nothing done, where that is not
// to be had.
template <class Bytes, class Run>
bool run_sub_problems(const Problem& p, const Context& context, int64_t least, const Bytes& bytes,
                      const Run& run) {
  Problem largest = p;
  int64_t needed = bytes(p);
  int times = 0;
  const auto ask_less = [&] {
    const auto halves = needed > least ? split_in_two(largest) : std::nullopt;
    if (!halves) return false;
    largest = halves->first, needed = bytes(largest), ++times;
    return true;
  };
  while (!fits_in_free_memory(needed) && ask_less()) {
  }
  void* workspace;
  while ((workspace = context.allocate(needed)) == nullptr) {
    if (!ask_less()) return false;
  }
  run_split(times, p, [&](const Problem& part) { run(part, static_cast<uint8_t*>(workspace)); });
  return true;
}

}  // namespace tiled::cuda
