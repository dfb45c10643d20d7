#include "core/strided.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tiled {
namespace {

// Searches for d[i] in [low[i], high[i]], not all zero if `nonzero`, such that
// distance + sum d[i] * step[i] is strictly between `below` and `above`. Steps descend. The
// search visits only values that the remaining steps can still make up for: two or three a step for
// views of one tensor. A pattern that exceeds the limit counts as disjoint, as PyTorch counts all
// but the simplest.
struct Step {
  int64_t step, low, high;
};
class Search {
 public:
  Search(std::vector<Step> steps, int64_t below, int64_t above, bool nonzero)
      : steps_(std::move(steps)), below_(below), above_(above), nonzero_(nonzero) {
    std::ranges::sort(steps_, std::greater{}, &Step::step);
    lowest_.resize(steps_.size() + 1);
    highest_.resize(steps_.size() + 1);
    for (size_t i = steps_.size(); i-- > 0;) {
      lowest_[i] = lowest_[i + 1] + steps_[i].low * steps_[i].step;
      highest_[i] = highest_[i + 1] + steps_[i].high * steps_[i].step;
    }
  }

  bool finds(int64_t distance) { return visit(0, distance, false); }

 private:
  bool visit(size_t i, int64_t distance, bool moved) {
    if (distance + highest_[i] <= below_ || distance + lowest_[i] >= above_) return false;
    if (i == steps_.size()) return moved || !nonzero_;
    if (++visited_ > kLimit) return false;
    const Step& s = steps_[i];
    if (s.step == 0) return visit(i + 1, distance, moved || s.low < 0 || s.high > 0);
    // distance + d * step + [lowest, highest] must reach into (below, above).
    const int64_t first = ceil_div(below_ + 1 - highest_[i + 1] - distance, s.step);
    const int64_t last = floor_div(above_ - 1 - lowest_[i + 1] - distance, s.step);
    for (int64_t d = std::max(first, s.low); d <= std::min(last, s.high); ++d) {
      if (visit(i + 1, distance + d * s.step, moved || d != 0)) return true;
    }
    return false;
  }

  static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
  static int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

  static constexpr int kLimit = 100000;
  std::vector<Step> steps_;
  int64_t below_, above_;
  bool nonzero_;
  std::vector<int64_t> lowest_, highest_;
  int visited_ = 0;
};

}  // namespace

std::string to_string(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::optional<Shape> broadcast(std::span<const int64_t> a, std::span<const int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  Shape shape(a.begin(), a.end());
  const size_t missing = a.size() - b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    int64_t& size = shape[missing + i];
    if (size != b[i] && size != 1 && b[i] != 1) return std::nullopt;
    if (size == 1) size = b[i];
  }
  return shape;
}

std::optional<int64_t> count_elements(std::span<const int64_t> shape, int64_t element_size) {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t bytes = element_size;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes / element_size;
}

Shape contiguous_strides(std::span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

bool Strided::empty() const { return std::ranges::find(sizes, 0) != sizes.end(); }

void Strided::insert(int64_t at, int64_t size, int64_t stride) {
  sizes.insert(at, size);
  strides.insert(at, stride);
}

void Strided::swap_last_two() {
  std::swap(sizes[rank() - 1], sizes[rank() - 2]);
  std::swap(strides[rank() - 1], strides[rank() - 2]);
}

bool overlaps_itself(const Strided& x) {
  if (x.empty()) return false;
  std::vector<Step> steps;
  for (int64_t d = 0; d < x.rank(); ++d) {
    const int64_t reach = x.sizes[d] - 1;
    if (reach > 0) steps.push_back({x.strides[d] * x.element_size, -reach, reach});
  }
  return Search(std::move(steps), -x.element_size, x.element_size, true).finds(0);
}

bool overlap(const Strided& x, const Strided& y) {
  if (x.empty() || y.empty()) return false;
  std::vector<Step> steps;
  auto add = [&](const Strided& s, int sign) {
    for (int64_t d = 0; d < s.rank(); ++d) {
      const int64_t step = s.strides[d] * s.element_size;
      const int64_t reach = s.sizes[d] - 1;
      if (step == 0 || reach == 0) continue;
      const Step added = sign > 0 ? Step{step, 0, reach} : Step{step, -reach, 0};
      const auto same = std::ranges::find(steps, step, &Step::step);
      if (same == steps.end()) {
        steps.push_back(added);
      } else {
        same->low += added.low;
        same->high += added.high;
      }
    }
  };
  add(x, +1);
  add(y, -1);
  const auto distance = static_cast<const char*>(x.data) - static_cast<const char*>(y.data);
  return Search(std::move(steps), -x.element_size, y.element_size, false).finds(distance);
}

}  // namespace tiled
