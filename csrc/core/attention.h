#pragma once
// Scaled dot product attention as launchers take it.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/element.h"

namespace tiled {

// A tensor of (batch, heads, rows, columns) with strides in elements.
template <class Void>
struct HeadsOf {
  Void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0, col_stride = 0;
};
using Heads = HeadsOf<const void>;

enum class MaskKind { kNone, kBool, kFloat };

// Rows of sequences that are packed one after another: sequence i has offsets[i] up to
// offsets[i + 1]. Offsets are clamped to the rows that there are, so that none leads outside.
//
// Range i + 1 is sequence i. Ranges 0 and count + 1 are the rows before the first sequence and
// after the last one.
struct PackedRows {
  const int32_t* offsets = nullptr;  // count + 1, where the kernel runs
  int count = 0;                     // of sequences
  int rows = 0;                      // of all

  HOST_DEVICE int ranges() const { return count + 2; }
  HOST_DEVICE bool is_sequence(int range) const { return range > 0 && range <= count; }
  HOST_DEVICE int begin(int range) const {
    if (range == 0) return 0;
    if (range > count + 1) return rows;
    const int offset = offsets[range - 1];
    return offset < 0 ? 0 : offset < rows ? offset : rows;
  }
  HOST_DEVICE int end(int range) const {
    const int first = begin(range), next = begin(range + 1);
    return next > first ? next : first;
  }

  // Tiles of `size` rows that begin where ranges do. A range has its tiles from first_tile() on:
  // ranges have none in common if offsets ascend, and none is beyond tiles().
  HOST_DEVICE int first_tile(int range, int size) const { return begin(range) / size + range; }
  HOST_DEVICE int tiles(int size) const { return rows / size + ranges(); }
};

// out[b, h, i] = sum over j of p[j] v[b, g, j], with p the softmax over j of
// scale * (q[b, h, i] . k[b, g, j]) + mask[b, h, i, j], and g = h / (heads / kv_heads). A key that
// a boolean mask is false for, or that is past the causal end, has no share.
//
// Packed sequences are a batch of 1 with the rows of all, without a mask or a causal offset:
// `queries` and `keys` are those of the longest sequence, `sum` and `exponent` have all rows.
struct AttentionProblem {
  DType dtype = DType::kFloat32;  // of q, k, v and out
  int64_t batch = 1, heads = 1, kv_heads = 1;
  int64_t queries = 0, keys = 0;
  int64_t head_size = 0, value_size = 0;  // columns of q and k; of v and out
  Heads q, k, v;
  HeadsOf<void> out;
  // The softmax's denominator is sum * 2^exponent, of (batch, heads, queries), contiguous.
  float* sum = nullptr;
  int32_t* exponent = nullptr;
  float scale = 1;
  bool causal = false;
  int64_t causal_offset = 0;  // query i sees keys 0 to i + causal_offset
  MaskKind mask_kind = MaskKind::kNone;
  Heads mask;  // (batch, heads, queries, keys), of bool or float32; strides are 0 where it expands
  PackedRows packed_queries, packed_keys;

  bool is_packed() const { return packed_queries.offsets != nullptr; }
  // Rows of a head in q and out, and in k and v.
  int64_t query_rows() const { return is_packed() ? packed_queries.rows : queries; }
  int64_t key_rows() const { return is_packed() ? packed_keys.rows : keys; }
  // Tiles of `size` queries or keys of a head.
  int64_t query_tiles(int size) const {
    return is_packed() ? packed_queries.tiles(size) : ceil_div(queries, size);
  }
  int64_t key_tiles(int size) const {
    return is_packed() ? packed_keys.tiles(size) : ceil_div(keys, size);
  }

  // Of q, k and v, at most.
  int64_t columns() const { return std::max(head_size, value_size); }

  // The number of keys that query i may see without the mask.
  HOST_DEVICE int64_t visible_keys(int64_t i) const {
    if (!causal) return keys;
    const int64_t end = i + causal_offset + 1;
    return end < 0 ? 0 : end < keys ? end : keys;
  }

  HOST_DEVICE int64_t mask_of_head(int64_t of_batch, int64_t head) const {
    return of_batch * mask.batch_stride + head * mask.head_stride;
  }
  // What the mask adds to a score. Clears `seen` if it hides the key from the query.
  HOST_DEVICE float bias(int64_t of_head, int64_t query, int64_t key, bool& seen) const {
    const int64_t at = of_head + query * mask.row_stride + key * mask.col_stride;
    if (mask_kind == MaskKind::kBool) {
      seen = static_cast<const uint8_t*>(mask.data)[at] != 0;
      return 0;
    }
    const float bias = static_cast<const float*>(mask.data)[at];
    seen = bias != -INFINITY;
    return bias;
  }
};

// The gradients of q, k and v by that of out. `out`, `sum` and `exponent` are what the forward pass
// stored; dk and dv are of (batch, kv_heads, keys, columns). One without data is not computed.
struct AttentionBackward : AttentionProblem {
  Heads dout;
  HeadsOf<void> dq, dk, dv;
  // That of the scores with a float32 mask, (batch, heads, queries, keys), contiguous; or null.
  // Keys past the causal end may not be written.
  float* dscores = nullptr;

  HOST_DEVICE bool needs_queries() const { return dq.data != nullptr || dscores != nullptr; }
  HOST_DEVICE bool needs_keys() const { return dk.data != nullptr || dv.data != nullptr; }
};

}  // namespace tiled
