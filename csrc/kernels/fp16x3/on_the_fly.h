#pragma once
// The problem as fp16x3_skinny and fp16x3_fused see it: they split the long operand on the fly,
// that is, in the kernel that multiplies it.
//
// The long operand is B, or A if m > n. The kernels compute the sums of C or of its transpose:
// rows of sums are the short operand's, and columns are the long one's. A panel is
// some rows of the short operand. A work tile is tile_cols columns of the long operand times a
// panel, in one chunk of K and one matrix. Work tiles are numbered by columns first, then by
// panels, chunks and matrices. The sums of work tiles go to a workspace, and a second kernel adds
// the sums of all chunks in order (on_the_fly_sm90.cu).

#include <cstdint>
#include <functional>

#include "core/complex.h"
#include "core/context.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/problem.h"
#include "kernels/fp16x3/recompute_list.cuh"

namespace tiled::cuda {

struct OnTheFlyParams {
  Problem p;
  Matrix long_operand, short_operand;  // row_stride: between columns or rows of sums; col_stride: K
  bool long_is_a, long_k_major;
  bool long_vectorized, short_vectorized;  // allow 128-bit copies; the short operand along K only
  int64_t long_count, short_count;         // columns and rows of the sums
  int tile_cols, panel_rows;
  unsigned panels, chunks;
  int64_t first_matrix, first_col_tile;  // of this launch
  unsigned matrices, col_tiles;          // in this launch
  bool adds_chunks;        // a second kernel adds the sums of chunks; else the first one stores C
  int64_t max_sums_bytes;  // of a launch's sums, unless one column of tiles takes more
  float* partial_sums;     // (matrices, chunks, short_count, col_tiles * tile_cols)
  // Flagged elements are listed, if there is a list, or else recomputed by the second kernel.
  RecomputeList recompute;
  unsigned long long* recomputed;  // counts elements that the second kernel recomputes, or null
  Presplit short_presplit;         // for kernels with the short operand split beforehand
  // B is complex and stored as in_place_b() describes it; it is the long operand.
  bool b_is_complex;
  SignsOfB signs_of_b;

  // The panels of a launch in all chunks and matrices; each meets all of its columns.
  HOST_DEVICE unsigned panel_chunks() const { return matrices * chunks * panels; }
  HOST_DEVICE int64_t sums_pitch() const { return int64_t{col_tiles} * tile_cols; }
};

// From this K on all sums are promoted alike.
inline constexpr int kMinKOnTheFly = 512;
static_assert(fp16x3::promotion(kMinKOnTheFly) == fp16x3::promotion(kChunk));

inline constexpr int64_t kMaxSumsBytes = int64_t{64} << 20, kLeastSumsBytes = int64_t{1} << 20;

// The parameters of a problem in work tiles of `tile_cols` columns and panels of at most `max_rows`
// rows. The caller sets partial_sums, recomputed, and the presplit's memory.
OnTheFlyParams on_the_fly_params(const Problem& p, int tile_cols, int max_rows,
                                 int64_t max_sums_bytes);

// The bytes of partial_sums: for all work tiles, up to max_sums_bytes, or for the work tiles of
// the same columns in a matrix. A sub-problem never takes more than the problem.
int64_t partial_sums_bytes(const OnTheFlyParams& params);

// Computes C in launches with sums that fit in partial_sums. For each it calls launch(blocks): its
// blocks share the work tiles evenly and take `tiles_at_once` of them at a time; then it has the
// sums added and stored.
void run_on_the_fly(OnTheFlyParams& params, int tiles_at_once, const Context& context,
                    const std::function<void(unsigned blocks)>& launch);

}  // namespace tiled::cuda
