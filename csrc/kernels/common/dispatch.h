#pragma once
// From a plan's tile, an index, and from operands' layouts to the kernel that is instantiated for
// them.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/problem.h"

namespace tiled::cuda {

// Returns f.template operator()<tile>(), a bool. The index is a constant there.
template <size_t kTiles, class F>
bool with_tile(int tile, F&& f) {
  bool result = false;
  const bool found = [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    const auto try_one = [&]<size_t kIndex>() {
      if (tile != static_cast<int>(kIndex)) return false;
      result = f.template operator()<static_cast<int>(kIndex)>();
      return true;
    };
    return (try_one.template operator()<kIndices>() || ...);
  }(std::make_index_sequence<kTiles>());
  if (!found) throw std::logic_error("torch_tiled: there is no tile " + std::to_string(tile));
  return result;
}

// Calls f.template operator()<kAMnMajor, kBMnMajor>().
template <class F>
void with_majors(const Problem& p, F&& f) {
  const bool a_mn_major = is_mn_major(p.a), b_mn_major = is_mn_major(transposed(p.b));
  if (a_mn_major) {
    b_mn_major ? f.template operator()<true, true>() : f.template operator()<true, false>();
  } else {
    b_mn_major ? f.template operator()<false, true>() : f.template operator()<false, false>();
  }
}

// Throws if the kernel is not instantiated for the tile that a plan names.
[[noreturn]] inline void fail_no_tile(const char* kernel, int tile) {
  throw std::logic_error("torch_tiled: " + std::string(kernel) + " is not compiled for tile " +
                         std::to_string(tile));
}

}  // namespace tiled::cuda
