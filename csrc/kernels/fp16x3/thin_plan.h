#pragma once
// The plan of fp16x3_thin, also of complex operands and of 16-bit ones in place.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/complex.h"
#include "core/mixed.h"
#include "kernels/common/cost_model.h"
#include "kernels/fp16x3/costs_h200.h"

namespace tiled {

// A tile's rows of the long and of the short operand, and the warps of a block that load, which
// have 128 of K each.
inline constexpr int kFp16x3ThinRows = 16, kFp16x3ThinCols = 8;
// Bits of Plan::tile: complex operands in place; several products of two vectors in a tile.
inline constexpr int kFp16x3ThinComplex = 1, kFp16x3ThinDiagonal = 2;
constexpr int fp16x3_thin_warps(int64_t k) { return k <= 256 ? 2 : k < 512 ? 4 : 8; }
// The bytes of shared memory that a block takes, and how many blocks share an SM.
constexpr int fp16x3_thin_smem(int warps, int cols) {
  return warps * 8864 + 112 + (warps * 8 + 1) * cols * 64;
}
constexpr int fp16x3_thin_blocks_by_registers(int warps) { return 20 / (warps + 1); }
constexpr int fp16x3_thin_blocks(int warps, int cols) {
  return std::min(fp16x3_thin_blocks_by_registers(warps),
                  static_cast<int>(kSharedMemoryOfSm) / (fp16x3_thin_smem(warps, cols) + 1024));
}
// The number of blocks that take adjacent tiles in turn. Four blocks read whole sectors of the rows
// of an MN-major operand.
constexpr int fp16x3_thin_team(bool k_major) { return k_major ? 1 : 4; }

// A problem and its sides. Each row of a complex short operand is two, one for each part of C, and
// strides count numbers: those of in_place_a() along K and of in_place_b() do, as means of two
// floats.
struct Fp16x3ThinSides {
  Problem p;
  LongAndShort sides;
  int diagonal = 0;  // OnTheFlyParams::diagonal
};
// `tile`: Plan::tile. A batch of products of two vectors becomes one product, the diagonal of which
// is C: of all vectors as rows of A by all vectors as columns of B.
inline Fp16x3ThinSides fp16x3_thin_sides(const Problem& problem, int tile) {
  Fp16x3ThinSides found{.p = problem, .sides = long_and_short(problem)};
  Problem& p = found.p;
  const bool complex = (tile & kFp16x3ThinComplex) != 0;
  const bool diagonal = (tile & kFp16x3ThinDiagonal) != 0;
  const int parts = complex ? 2 : 1;
  if (diagonal) {
    p.m = p.batch.count, p.n = parts * p.m, p.batch = {};
    p.a.row_stride = p.a.batch_stride[0], p.b.col_stride = p.b.batch_stride[0] / parts;
    // Element (i, parts * i + part) of C.
    p.c.row_stride = p.c.batch_stride[0] - (complex ? 2 : 0), p.c.col_stride = complex ? 1 : 0;
  }
  if (complex || diagonal) {
    Matrix a = p.a;
    a.row_stride /= parts;
    const Matrix b = transposed(p.b);
    found.sides = p.m > p.n / parts ? LongAndShort{true, a, b, p.m, p.n}
                                    : LongAndShort{false, b, a, p.n / parts, parts * p.m};
  }
  if (diagonal) found.diagonal = kFp16x3ThinCols / parts, found.sides.long_count = found.diagonal;
  return found;
}
// A block waits for its loads and chains of products, and for other blocks of its SM; chunks are
// added by a second kernel.
inline Plan fp16x3_thin_plan_of(const Problem& problem, int tile_kind, int64_t sms) {
  using Cost = h200::Fp16x3;
  const Fp16x3ThinSides found = fp16x3_thin_sides(problem, tile_kind);
  const Problem& p = found.p;
  const LongAndShort& sides = found.sides;
  const bool complex = (tile_kind & kFp16x3ThinComplex) != 0;
  Plan plan{.tile = tile_kind,
            .m = kFp16x3ThinCols,
            .n = kFp16x3ThinRows,
            .k_splits = std::max<int64_t>(1, ceil_div(p.k, kChunk))};
  plan.blocks = ceil_div(sides.short_count, plan.m) * ceil_div(sides.long_count, plan.n) *
                p.batch.count * plan.k_splits;
  const int64_t cols = std::min<int64_t>(sides.short_count, kFp16x3ThinCols);
  const int64_t resident = fp16x3_thin_blocks(fp16x3_thin_warps(p.k), static_cast<int>(cols)) * sms;
  const bool k_major = sides.long_operand.col_stride == 1;
  const bool short_k_major = sides.short_operand.col_stride == 1;
  const auto k = static_cast<double>(p.k) / static_cast<double>(plan.k_splits);
  const int64_t tiles = ceil_div(plan.blocks, resident);  // of a block
  // Times that a block loads rows of the short operand.
  const int64_t long_tiles =
      std::max<int64_t>(ceil_div(sides.long_count, int64_t{kFp16x3ThinRows}), 1);
  const auto loads =
      static_cast<double>(std::min(tiles, 1 + tiles * fp16x3_thin_team(k_major) / long_tiles));
  const double mn_major = complex ? Cost::kThinComplexMnMajor : Cost::kThinMnMajor;
  const double tile = Cost::kThinTile + k * (k_major ? Cost::kThinKMajor : mn_major);
  const double load = k * static_cast<double>(complex ? cols / 2 : cols) *
                      (short_k_major ? Cost::kThinShort : Cost::kThinShortMnMajor);
  const auto others = static_cast<double>(ceil_div(plan.blocks, sms) - tiles);
  const auto sums =
      static_cast<double>(sides.short_count * sides.long_count * p.batch.count * plan.k_splits);
  const double reduce = plan.k_splits == 1 ? 0
                                           : Cost::kThinReduce + sums / static_cast<double>(sms) *
                                                                     Cost::kThinReduceSum;
  plan.cycles = Cost::kThinLaunch + static_cast<double>(tiles) * tile + loads * load +
                others * k * Cost::kThinOthers + reduce;
  return plan;
}
inline Plan fp16x3_thin_fastest(const Problem& p, int tile, int64_t sms) {
  Plan plan = fp16x3_thin_plan_of(p, tile, sms);
  const int parts = (tile & kFp16x3ThinComplex) != 0 ? 2 : 1;
  if (p.m == 1 && p.n == parts && p.batch.rank == 1 && p.batch.count > 1 &&
      p.epilogue.bias == nullptr) {
    keep_faster(plan, fp16x3_thin_plan_of(p, tile | kFp16x3ThinDiagonal, sms));
  }
  return plan;
}
inline Plan fp16x3_thin_plan(const Problem& p, int64_t sms) {
  return fp16x3_thin_fastest(p, 0, sms);
}
inline std::optional<Plan> fp16x3_thin_complex_plan(const Plan&, const Problem& p, const SignsOfB&,
                                                    int64_t sms) {
  return fp16x3_thin_fastest(p, kFp16x3ThinComplex, sms);
}
// fp16x3_thin has instances with as many warps as K from 512 on takes.
inline bool fp16x3_thin_reads_mixed(const Problem& p, const Narrow&) { return p.k >= 512; }

}  // namespace tiled
