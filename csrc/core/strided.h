#pragma once
// Shapes and strides: broadcasting, and views that overlap.

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/lazy.h"

namespace tiled {

// A list of sizes or strides, which allocates memory only for more than kFew of them.
class Shape {
 public:
  static constexpr size_t kFew = 8;

  Shape() = default;
  explicit Shape(size_t size) { resize(size); }  // of zeros
  Shape(std::initializer_list<int64_t> values) : Shape(values.begin(), values.end()) {}
  template <class Iterator>
  Shape(Iterator first, Iterator last) : Shape(static_cast<size_t>(last - first)) {
    std::copy(first, last, begin());
  }

  size_t size() const { return size_; }
  int64_t* data() { return size_ > kFew ? many_.data() : few_.data(); }
  const int64_t* data() const { return size_ > kFew ? many_.data() : few_.data(); }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t& operator[](int64_t i) { return data()[i]; }
  int64_t operator[](int64_t i) const { return data()[i]; }
  int64_t back() const { return end()[-1]; }

  void insert(int64_t at, int64_t value) {
    resize(size_ + 1);
    std::copy_backward(begin() + at, end() - 1, end());
    data()[at] = value;
  }
  void push_back(int64_t value) { insert(static_cast<int64_t>(size_), value); }

 private:
  void resize(size_t size) {
    if (size > kFew && size_ <= kFew) many_.assign(few_.begin(), few_.begin() + size_);
    if (size > kFew) many_.resize(size);
    size_ = size;
  }

  size_t size_ = 0;
  std::array<int64_t, kFew> few_ = {};
  std::vector<int64_t> many_;  // all of them, if they are more
};

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
