#pragma once
// Shapes and strides: broadcasting, and views that overlap.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/lazy.h"

namespace tiled {

using Shape = std::vector<int64_t>;

std::string to_string(std::span<const int64_t> shape);  // "(2, 3)", as Python writes it

// The shape that both broadcast to, or nothing if they do not.
std::optional<Shape> broadcast(std::span<const int64_t> a, std::span<const int64_t> b);

// The number of elements, or nothing if they or their bytes do not fit in 63 bits.
std::optional<int64_t> count_elements(std::span<const int64_t> shape, int64_t element_size);

Shape contiguous_strides(std::span<const int64_t> shape);

// A tensor's memory: strides count elements.
struct Strided {
  const void* data = nullptr;
  int64_t element_size = 0;
  Shape sizes, strides;
  Lazy lazy = {};  // of complex numbers

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  bool empty() const;
  void insert(int64_t at, int64_t size, int64_t stride);
  void swap_last_two();
};

// Returns whether two elements of x share a byte.
bool overlaps_itself(const Strided& x);
// Returns whether an element of x and one of y share a byte. Interleaved views do not.
bool overlap(const Strided& x, const Strided& y);

}  // namespace tiled
