#pragma once
// The table of rungs, and the choice among them.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/problem.h"

namespace tiled {

using Launch = void (*)(const Problem&, const Context&);

// In which order an element is summed: what its bits depend on.
enum class Order {
  kPlain,    // ascending in K
  kChunked,  // sum.h
  kFp16x3,   // fp16x3.h
  kMma,  // mma_order.h
  kTf32,     // tf32.h
};

// Whether rows and columns are scaled in it, and elements computed again where that lost too much.
inline bool is_guarded(Order order) { return order == Order::kFp16x3 || order == Order::kTf32; }

// Where a rung runs, besides the host.
enum class Runs {
  kAnywhere,
  kFloat32,       // anywhere, of float32
  kHopper,        // there, of float32
  k16Bit,        // anywhere, of float16 and bfloat16
  kHopper16Bit,  // there, of those
};

// How operands must lie for a rung, which declines others.
enum class Reads {
  kAny,
  kSides,  // neighbours along C's sides; others are copied so, up to fits_tma_rank() of problem.h
  kBoxes,  // C's longer side's operand: is_tma_aligned() of problem.h
  kLines,  // both: is_k_major_aligned()
  kNeighbours,  // C's longer side's: neighbours not is_tma_aligned(); the other one is copied to be so
  kCopied,      // both: is_tma_aligned(); others are copied so, up to fits_tma_rank()
};

// How a rung shares K among blocks.
enum class Cut {
  kNever,
  kChunks,    // a block computes one chunk of the sums; tile_m is along C's shorter side
  kRanges,    // bulk_ranges() of cuts.h
  kSimtCpAsyncPlan,  // simt_cp_async_plan() of simt.h, which knows the tiles and what they cost, instead of the row
  kSimtTmaPlan,  // simt_tma_plan() likewise
  kSimtSmallPlan,      // simt_small_plan() likewise, whose "blocks" are teams
  kSimtSkinnyPlan,     // simt_skinny_plan() likewise
  kMmaSyncPlan,    // mma_sync_plan() of mma.h likewise
  kMmaUnalignedPlan,   // mma_unaligned_plan() likewise
  kMmaTmaPlan,    // mma_tma_plan() likewise
  kTf32TmaPlan,  // mma_tma_tiles_plan() likewise
};

struct Rung {
  std::string_view name;
  std::string_view family;  // by this name the best of several rungs is asked for
  Order order;
  Runs runs;
  int64_t min_k;       // that it takes
  int64_t max_k;       // likewise, or 0
  int tile_m, tile_n;  // of C, computed by one block; one of those that the rung has
  Cut cut;
  Reads reads;
  // What it costs on an H200 in fp32, in clocks of a multiprocessor:
  double start;        // to launch, and to begin and end
  double before;       // for each element of A and B that is rewritten beforehand
  double before_line;  // and for a row of A, or a column of B, at least
  double wave;         // to begin and end a block
  double rate;         // multiply-adds a clock
  Launch cuda;         // null in a build without CUDA
  Launch cpu;

  bool takes_16bit() const { return runs == Runs::k16Bit || runs == Runs::kHopper16Bit; }
  std::pair<int, int> tile(const Problem& p, const Context& context) const;
  bool runs_on(const Context& context, DType dtype) const;
  bool takes(const Problem& p) const;
  int64_t blocks(const Problem& p, const Context& context) const;
  int64_t waves(const Problem& p, const Context& context) const;
  // Clocks of the busiest processor, by the model that picks: the start, what is done beforehand,
  // then whole waves of blocks.
  double clocks(const Problem& p, const Context& context) const;
};

// What `algorithm` may be, slowest first, "auto" apart.
std::vector<std::string> algorithms();

// The rung for the problem: the one of that name, the fastest by Rung::clocks of that family, or,
// where algorithm is "auto", of all that sum in the order that the precision asks for, which is a
// function of dtype, K and the device alone. Throws a sentence where there is none.
const Rung& pick(std::string_view algorithm, const Problem& p, const Context& context);

// The choice and its reasons, as pairs of a heading and a text.
std::vector<std::pair<std::string, std::string>> explain(std::string_view algorithm,
                                                         const Problem& p, const Context& context);

}  // namespace tiled
