#pragma once
// The problem as fp16x3_skinny and fp16x3_fused see it: they split the long operand on the fly,
// that is, in the kernel that multiplies it.
//
// The long operand is B, or A if m > n. The kernels compute the sums of C or of its transpose:
// rows of sums are those of the short operand, and columns are those of the long one. A panel is
// some rows of the short operand. A work tile is tile_cols columns of the long operand times a
// panel, in one chunk of K and one matrix. Work tiles are numbered by columns first, then by
// panels, chunks and matrices. The sums of work tiles go to a workspace, and a second kernel adds
// those of all chunks in order (on_the_fly_sm90.cu).

#include <cstdint>
#include <functional>

#include "core/complex.h"
#include "core/context.h"
#include "core/mixed.h"
#include "core/order_fp16x3.h"
#include "core/plan.h"
#include "core/presplit.h"
#include "core/problem.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/recompute_list.cuh"

namespace tiled::cuda {

// Operands: float32; the same with a complex B, or with both, which in_place_a() and in_place_b()
// describe; or one that is a 16-bit one.
enum class Stored { kFloat32, kComplexB, kComplex, kMixed };

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
  Presplit short_presplit;         // for kernels whose short operand is split beforehand
  // The columns of a tile if C is the diagonal of the sums, else 0. A panel then meets one tile:
  // each column of it meets a row, or both rows of a complex number.
  int diagonal;
  // How the operands are stored, by which flagged elements are recomputed. A complex B alone is the
  // long operand. If both are complex, rows of sums are the parts of numbers: short_count is even.
  Stored stored;
  SignsOfB signs_of_b;
  Narrow narrow;  // which operand is a 16-bit one

  bool is_mixed() const { return stored == Stored::kMixed; }
  bool long_is_narrow() const { return is_mixed() && narrow.is_a == long_is_a; }

  // The panels of a launch in all chunks and matrices; each meets all of its columns.
  HOST_DEVICE unsigned panel_chunks() const { return matrices * chunks * panels; }
  HOST_DEVICE int64_t sums_pitch() const { return int64_t{col_tiles} * tile_cols; }

  // The element of C, as a real matrix, that has a sum.
  struct Element {
    int64_t row, col;
  };
  HOST_DEVICE Element element(int64_t short_row, int64_t long_col) const {
    if (diagonal != 0) return {diagonal_col(short_row), short_row};
    if (long_is_a) return {long_col, short_row};
    if (stored == Stored::kComplex) return {short_row / 2, long_col * 2 + short_row % 2};
    return {short_row, long_col};
  }
  // The column that a row, of a panel or of all, meets on the diagonal.
  HOST_DEVICE int64_t diagonal_col(int64_t short_row) const {
    return stored == Stored::kComplex ? short_row / 2 : short_row;
  }
};

// From this K on all sums are promoted alike.
inline constexpr int kMinKOnTheFly = 512;
static_assert(fp16x3::promotion(kMinKOnTheFly) == fp16x3::promotion(kChunk));

// The parameters of a problem, as its sides have it, in work tiles of `tile_cols` columns and
// panels of at most `max_rows` rows. `narrow` is null if both operands are float32. The caller sets
// partial_sums, recomputed, and the presplit's memory.
OnTheFlyParams on_the_fly_params(const Problem& p, const LongAndShort& sides, int tile_cols,
                                 int max_rows, const Narrow* narrow = nullptr);

// Computes C in launches whose sums fit in partial_sums. For each it calls launch(blocks), whose
// blocks share the work tiles evenly and take `tiles_at_once` of them at a time; then it has the
// sums added and stored.
void run_on_the_fly(OnTheFlyParams& params, int tiles_at_once, const Context& context,
                    const std::function<void(unsigned blocks)>& launch);

// Calls run(part, partial_sums, recomputed) for the problem, or, if memory is short, for
// sub-problems that share a smaller workspace for their sums, unless it has a 16-bit operand.
// `workspace`: of the kernel's row in select/kernels.def. Returns false, with nothing run, if there
// is no memory.
bool run_with_sums(const Problem& p, const Plan& plan, const Narrow* narrow, const Context& context,
                   WorkspaceBytes (*workspace)(const Problem&, const Plan&, int64_t sms),
                   const std::function<void(const Problem& part, float* partial_sums,
                                            unsigned long long* recomputed)>& run);

// --- Work tiles on the GPU -----------------------------------------------------------------------

// A stage holds kStageK of K of a work tile's columns.
inline constexpr int kK16s = 4, kStageK = kK16s * 16;

// A panel of the short operand in one chunk of one matrix. All work tiles that multiply it follow
// each other: work tile i belongs to panel chunk i / col_tiles.
struct PanelChunk {
  unsigned matrix, chunk;  // matrix: of the launch
  int first_row, rows;     // of the panel
  int length;              // of the chunk

  __device__ PanelChunk(const OnTheFlyParams& params, unsigned index)
      : matrix(index / params.panels / params.chunks),
        chunk(index / params.panels % params.chunks),
        first_row(static_cast<int>(index % params.panels) * params.panel_rows),
        rows(static_cast<int>(min(params.short_count - first_row, int64_t{params.panel_rows}))),
        length(static_cast<int>(min(params.p.k - int64_t{chunk} * kChunk, int64_t{kChunk}))) {}
};

// The work tiles of a block.
struct BlockTiles {
  unsigned first, end;

  __device__ explicit BlockTiles(const OnTheFlyParams& params) {
    const uint64_t tiles = uint64_t{params.panel_chunks()} * params.col_tiles;
    first = static_cast<unsigned>(tiles * blockIdx.x / gridDim.x);
    end = static_cast<unsigned>(tiles * (blockIdx.x + 1) / gridDim.x);
  }
};

// The sums of a panel chunk, from its first row and the launch's first column on.
__device__ inline float* partial_sums(const OnTheFlyParams& params, const PanelChunk& panel_chunk) {
  const int64_t group = int64_t{panel_chunk.matrix} * params.chunks + panel_chunk.chunk;
  return params.partial_sums +
         (group * params.short_count + panel_chunk.first_row) * params.sums_pitch();
}

}  // namespace tiled::cuda
