#pragma once
// From a plan's tile, an index, to the kernel that is instantiated for it.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

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

// Throws if the kernel is not instantiated for the tile that a plan names.
[[noreturn]] inline void fail_no_tile(const char* kernel, int tile) {
  throw std::logic_error("torch_tiled: " + std::string(kernel) + " is not compiled for tile " +
                         std::to_string(tile));
}

}  // namespace tiled::cuda
