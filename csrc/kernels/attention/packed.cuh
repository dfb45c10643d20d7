#pragma once
// Packed sequences: a block finds the one that its rows belong to.

#include "core/attention.h"
#include "kernels/attention/parts.h"
#include "kernels/attention/split_rows.cuh"
#include "kernels/attention/warpgroup.cuh"

namespace tiled::cuda::attention {

// Returns the last range that begins(range) holds for. If offsets ascend, it holds for all before
// that one. All lanes of a warp call this and test 32 ranges at once.
template <class Begins>
__device__ int find_range(const PackedRows& rows, const Begins& begins) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int first = 0, count = rows.ranges();
  NO_UNROLL
  while (count > 1) {
    const int step = (count + 31) / 32, at = lane * step;
    const unsigned found = __ballot_sync(~0u, at < count && begins(first + at));
    const int last = (31 - __clz(static_cast<int>(found | 1))) * step;
    first += last;
    count = min(step, count - last);
  }
  return first;
}

// A tile of `size` rows, with `index` of all that there are.
struct PackedTile {
  int range;
  int first;  // row, counted from the first one of the range on; it may not exist

  __device__ PackedTile(const PackedRows& rows, int size, int index) {
    range = find_range(rows, [&](int i) { return rows.first_tile(i, size) <= index; });
    first = (index - rows.first_tile(range, size)) * size;
  }
};

// The keys of a range of queries: none for those of no sequence.
struct PackedKeys {
  int first_key, keys = 0;
  int first_key_tile;  // in the parts

  __device__ PackedKeys(const AttentionProblem& p, int range)
      : first_key(p.packed_keys.begin(range)),
        first_key_tile(p.packed_keys.first_tile(range, kRows)) {
    if (!p.packed_keys.is_sequence(range)) return;
    keys = min(p.packed_keys.end(range) - first_key, static_cast<int>(p.keys));
  }
};

// The queries of a block, which are counted from the first one of their sequence on. What it needs
// at the end it reads again, and does not keep in registers.
struct PackedWork : Work, PackedKeys {
  using PackedKeys::first_key_tile;
  int range;

  __device__ PackedWork(const QueryParams& params, int queries)
      : PackedWork(params, Work(params, queries), queries) {}

  __device__ int first_row(const AttentionProblem& p) const {
    return p.packed_queries.begin(range);
  }
  __device__ int query_end(const AttentionProblem& p) const {
    return p.packed_queries.end(range) - first_row(p);
  }
  __device__ bool is_empty(const AttentionProblem& p) const { return first >= query_end(p); }
  __device__ int visible_keys(const AttentionProblem& p, int query) const {
    return p.causal ? min(query + 1, keys) : keys;
  }
  __device__ int key_tiles(const AttentionProblem& p, int end) const {
    return (visible_keys(p, min(end, query_end(p)) - 1) + kRows - 1) / kRows;
  }
  __device__ int64_t sum_index(const AttentionProblem& p, int64_t row) const {
    return matrix * int64_t{p.packed_queries.rows} + row;
  }
  __device__ RowReader keys_of(const RowReader& from) const { return from.part(first_key, keys); }

  __device__ static int visible_keys_of_row(const AttentionProblem& p, int row) {
    const PackedRows& rows = p.packed_queries;
    const int range = find_range(rows, [&](int i) { return rows.begin(i) <= row; });
    const PackedKeys of(p, range);
    return p.causal ? min(row - rows.begin(range) + 1, of.keys) : of.keys;
  }

 private:
  __device__ PackedWork(const QueryParams& params, const Work& work, int queries)
      : PackedWork(params, work,
                   PackedTile(params.p.packed_queries, queries, work.first / queries)) {}
  __device__ PackedWork(const QueryParams& params, const Work& work, const PackedTile& tile)
      : Work(work), PackedKeys(params.p, tile.range), range(tile.range) {
    batch = 0, head = matrix, first = tile.first;
  }
};

}  // namespace tiled::cuda::attention
