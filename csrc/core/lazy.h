#pragma once

namespace tiled {

// The bits of PyTorch's lazy views: a tensor's values are the conjugates of the numbers in memory,
// or their negatives, or both.
struct Lazy {
  bool conjugated = false, negated = false;

  friend Lazy operator^(Lazy x, Lazy y) {
    return {x.conjugated != y.conjugated, x.negated != y.negated};
  }
  friend bool operator==(const Lazy&, const Lazy&) = default;
};

}  // namespace tiled
