#include "select/ladder.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>

#include "core/order_mma.h"
#include "kernels/fp16x3/plan.h"
#include "core/error.h"
#include "core/order_fp16x3.h"
#include "kernels/mma/plan.h"
#include "core/plan.h"
#include "kernels/simt/plan.h"
#include "core/order_chunked.h"
#include "core/order_tf32.h"

#ifdef TORCH_TILED_WITH_CUDA
#define CUDA(launch) cuda::launch
#else
#define CUDA(launch) nullptr
#endif

namespace tiled {

namespace cuda {
void launch_naive(const Problem&, const Context&);
void launch_tiled16(const Problem&, const Context&);
void launch_tiled32(const Problem&, const Context&);
void launch_tiled64(const Problem&, const Context&);
void launch_simt_small(const Problem&, const Context&);
void launch_simt_cp_async(const Problem&, const Context&);
void launch_simt_tma(const Problem&, const Context&);
void launch_simt_skinny(const Problem&, const Context&);
void launch_fp16x3_wgmma(const Problem&, const Context&);
void launch_fp16x3_cluster(const Problem&, const Context&);
void launch_fp16x3_small(const Problem&, const Context&);
void launch_fp16x3_skinny(const Problem&, const Context&);
void launch_fp16x3_fused(const Problem&, const Context&);
void launch_mma_sync(const Problem&, const Context&);
void launch_mma_tma(const Problem&, const Context&);
void launch_tf32_tma(const Problem&, const Context&);
void launch_mma_unaligned(const Problem&, const Context&);
}  // namespace cuda

namespace cpu {
void launch_naive(const Problem&, const Context&);
void launch_tiled16(const Problem&, const Context&);
void launch_tiled32(const Problem&, const Context&);
void launch_tiled64(const Problem&, const Context&);
void launch_fp16x3(const Problem&, const Context&);
void launch_mma(const Problem&, const Context&);
void launch_tf32(const Problem&, const Context&);
}  // namespace cpu

namespace {

// clang-format off
constexpr Rung kLadder[] = {
    // name            family    order            runs             K          tile      cut               reads          start  before line   wave             rate             CUDA                         CPU
    {"naive",          "naive",  Order::kPlain,   Runs::kAnywhere, 0,   0,    32,  32,  Cut::kNever,      Reads::kAny,   6000,  0,     0,     0,               13,              CUDA(launch_naive),          cpu::launch_naive},
    {"tiled16",        "tiled",  Order::kChunked, Runs::kAnywhere, 0,   0,    16,  16,  Cut::kNever,      Reads::kAny,   6000,  0,     0,     4000,            14,              CUDA(launch_tiled16),        cpu::launch_tiled16},
    {"tiled32",        "tiled",  Order::kChunked, Runs::kAnywhere, 0,   0,    32,  32,  Cut::kNever,      Reads::kAny,   6000,  0,     0,     4000,            16,              CUDA(launch_tiled32),        cpu::launch_tiled32},
    {"tiled64",        "tiled",  Order::kChunked, Runs::kAnywhere, 0,   0,    64,  64,  Cut::kNever,      Reads::kAny,   6000,  0,     0,     4000,            47,              CUDA(launch_tiled64),        cpu::launch_tiled64},
    {"simt_small",     "simt",   Order::kChunked, Runs::kFloat32,  1,   1024, 64,  64,  Cut::kSimtSmallPlan,  Reads::kAny,   6000,  0,     0,     0,               0,               CUDA(launch_simt_small),     cpu::launch_tiled64},
    {"simt_cp_async",      "simt",   Order::kChunked, Runs::kFloat32,  1,   0,    64,  64,  Cut::kSimtCpAsyncPlan,   Reads::kAny,   6000,  0,     0,     0,               0,               CUDA(launch_simt_cp_async),      cpu::launch_tiled64},
    {"simt_tma",      "simt",   Order::kChunked, Runs::kHopper,   64,  0,    64,  64,  Cut::kSimtTmaPlan,   Reads::kSides, 8000,  0.6,   204,   0,               0,               CUDA(launch_simt_tma),      cpu::launch_tiled64},
    {"simt_skinny",    "simt",   Order::kChunked, Runs::kHopper,   1,   0,    16,  128, Cut::kSimtSkinnyPlan, Reads::kBoxes, 7000,  0,     0,     0,               0,               CUDA(launch_simt_skinny),    cpu::launch_tiled64},
    {"fp16x3_cluster", "fp16x3", Order::kFp16x3,  Runs::kHopper,   0,   8192, 16,  32,  Cut::kChunks,     Reads::kLines, 0,     0,     0,     4000,            48,              CUDA(launch_fp16x3_cluster), cpu::launch_fp16x3},
    {"fp16x3_small",   "fp16x3", Order::kFp16x3,  Runs::kHopper,   0,   1024, 32,  16,  Cut::kNever,      Reads::kAny,   6000,  0,     0,     0,               40,              CUDA(launch_fp16x3_small),   cpu::launch_fp16x3},
    {"fp16x3_skinny",  "fp16x3", Order::kFp16x3,  Runs::kHopper,   512, 0,    32,  32,  Cut::kChunks,     Reads::kAny,   16000, 0,     0,     7000,            330,             CUDA(launch_fp16x3_skinny),  cpu::launch_fp16x3},
    {"fp16x3_fused",  "fp16x3", Order::kFp16x3,  Runs::kHopper,   512, 0,    64,  128, Cut::kChunks,     Reads::kBoxes, 17000, 0,     0,     0,               160,             CUDA(launch_fp16x3_fused),  cpu::launch_fp16x3},
    {"fp16x3_wgmma",    "fp16x3", Order::kFp16x3,  Runs::kHopper,   0,   0,    128, 128, Cut::kRanges,     Reads::kAny,   10000, 0.57,  193.8, BulkCost::kWave, BulkCost::kRate, CUDA(launch_fp16x3_wgmma),    cpu::launch_fp16x3},
    {"mma_sync",       "mma",    Order::kMma, Runs::k16Bit,   0,   0,    128, 128, Cut::kMmaSyncPlan, Reads::kAny,  6000,  0,     0,     0,               0,               CUDA(launch_mma_sync),       cpu::launch_mma},
    {"mma_unaligned",      "mma",    Order::kMma, Runs::kHopper16Bit, 1, 0,    64,  128, Cut::kMmaUnalignedPlan, Reads::kNeighbours, 2360, MmaCopies::kElement, MmaCopies::kLine, 0,               0,               CUDA(launch_mma_unaligned),      cpu::launch_mma},
    {"mma_tma",       "mma",    Order::kMma, Runs::kHopper16Bit,   1,   0,    128, 256, Cut::kMmaTmaPlan, Reads::kCopied, 3500, MmaCopies::kElement, MmaCopies::kLine, 0,               0,               CUDA(launch_mma_tma),       cpu::launch_mma},
    {"tf32_tma",      "tf32",   Order::kTf32,    Runs::kHopper,   0,   0,    128, 256, Cut::kTf32TmaPlan, Reads::kAny,  10000, 0.4,   136,   0,               0,               CUDA(launch_tf32_tma),      cpu::launch_tf32},
};
// clang-format on

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool is_16bit(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// The order that `auto` sums in: nothing but dtype, precision, K and the device decide it.
Order order_of(const Problem& p, const Context& context) {
  if (is_16bit(p.dtype)) return Order::kMma;
  if (p.dtype != DType::kFloat32 || !context.on_hopper()) return Order::kChunked;
  switch (p.precision) {
    case Precision::kFp32: return Order::kFp16x3;
    case Precision::kTf32: return Order::kTf32;
    case Precision::kIeee: return Order::kChunked;
  }
  return Order::kChunked;
}

// Sums that an order leaves to that of sum.h, by whatever name it is asked for.
bool leaves_to_chunks(Order order, int64_t k) {
  return (order == Order::kFp16x3 && k < fp16x3::kMinK) ||
         (order == Order::kTf32 && (k < tf32::kMinK || k > tf32::kMaxK));
}

// Throws a sentence where the problem cannot be computed by a rung that was asked for as
// `algorithm`, or by another of that name, of which one `runs` here or none does.
void check_can_take(const Rung& rung, bool runs, std::string_view algorithm, const Problem& p,
                    const Context& context) {
  const std::string name = "algorithm \"" + std::string(algorithm) + "\" ";
  const bool halves = rung.takes_16bit();
  if (!runs && halves && !is_16bit(p.dtype)) {
    fail(p.op, name +
                   "takes float16 and bfloat16 operands; choose auto, naive or tiled for other "
                   "dtypes, or simt or fp16x3 for float32");
  }
  if (!runs && !halves && p.dtype != DType::kFloat32) {
    fail(p.op, name +
                   "takes float32 operands; choose auto, naive or tiled for other dtypes, or mma "
                   "for float16 and bfloat16");
  }
  if (rung.order == Order::kFp16x3 && p.precision == Precision::kIeee) {
    fail(p.op, name +
                   "does not sum by IEEE FMAs, as precision ieee asks; choose auto, naive, "
                   "tiled or simt, or precision fp32");
  }
  if (rung.order == Order::kTf32 && p.precision != Precision::kTf32) {
    fail(p.op, name +
                   "rounds operands to 11 bits, which precision tf32 alone allows; choose auto, "
                   "or precision tf32");
  }
  if (!runs) {
    fail(p.op, name + "needs a Hopper GPU (compute capability 9.0), and this one has " +
                   std::to_string(context.compute_capability / 10) + "." +
                   std::to_string(context.compute_capability % 10) +
                   (halves ? "; choose auto, naive, tiled or mma_sync"
                           : "; choose auto, naive, tiled or simt"));
  }
}

// The rungs that `algorithm` leaves to choose from: at least one.
std::vector<const Rung*> candidates(std::string_view algorithm, const Problem& p,
                                    const Context& context) {
  std::vector<const Rung*> rungs;
  rungs.reserve(std::size(kLadder));
  const Rung* named = nullptr;  // any of those that were asked for: their order is the same
  bool runs = false;            // one of them does, here
  for (const Rung& rung : kLadder) {
    if (rung.name != algorithm && rung.family != algorithm) continue;
    named = &rung;
    if (!rung.runs_on(context, p.dtype)) continue;
    runs = true;
    if (rung.takes(p)) rungs.push_back(&rung);
  }
  if (named != nullptr) check_can_take(*named, runs, algorithm, p, context);
  if (named == nullptr && algorithm != "auto") {
    fail(p.op, "there is no algorithm \"" + std::string(algorithm) + "\"; choose auto, " +
                   join(algorithms()));
  }
  Order order = named != nullptr ? named->order : order_of(p, context);
  const bool leaves = leaves_to_chunks(order, p.k);
  if (leaves) order = Order::kChunked;
  // For a sum too long for the rung that was asked for, others give the same bits.
  if (rungs.empty() || leaves) {
    rungs.clear();
    for (const Rung& rung : kLadder) {
      if (rung.order != order || !rung.runs_on(context, p.dtype)) continue;
      if (rung.takes(p)) rungs.push_back(&rung);
    }
  }
  return rungs;
}

std::string describe(Order order, int64_t k) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(k, kChunk));
  const std::string cut = std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks") +
                          " of at most " + std::to_string(kChunk) + " in K, ";
  switch (order) {
    case Order::kPlain: return "ascending in K";
    case Order::kChunked: return cut + "each ascending, added in order";
    case Order::kFp16x3:
      return cut + "each three float16 products promoted every " +
             std::to_string(fp16x3::promotion(k)) + ", added in order";
    case Order::kMma:
    case Order::kTf32: {
      const int64_t chains = std::max<int64_t>(1, ceil_div(k, mma_order::kChunk));
      return std::to_string(chains) + (chains == 1 ? " chain" : " chains") + " of at most " +
             std::to_string(mma_order::kChunk) + " in K on tensor cores" +
             (order == Order::kTf32 ? ", of scaled halves" : "") + ", added in order";
    }
  }
  return "";
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

// The plan of simt.h or mma.h; nothing for other rungs.
std::optional<Plan> plan_of(const Rung& rung, const Problem& p, const Context& context) {
  switch (rung.cut) {
    case Cut::kNever:
    case Cut::kChunks:
    case Cut::kRanges: return std::nullopt;
    case Cut::kSimtCpAsyncPlan: return simt_cp_async_plan(p, context.sms);
    case Cut::kSimtTmaPlan: return simt_tma_plan(p, context.sms);
    case Cut::kSimtSmallPlan: return simt_small_plan(p, context.sms);
    case Cut::kSimtSkinnyPlan: return simt_skinny_plan(p, context.sms);
    case Cut::kMmaSyncPlan: return mma_sync_plan(p, context.sms);
    case Cut::kMmaUnalignedPlan: return mma_unaligned_plan(p, context.sms);
    case Cut::kMmaTmaPlan: return mma_tma_plan(p, context.sms);
    case Cut::kTf32TmaPlan: return mma_tma_tiles_plan(p, context.sms);
  }
  return std::nullopt;
}

// The operand that has C's longer side: the one that rungs which cut K read as it is.
const Matrix& longer(const Problem& p) { return p.m > p.n ? p.a : p.b; }

}  // namespace

bool Rung::runs_on(const Context& context, DType dtype) const {
  if (runs == Runs::kAnywhere) return true;
  if (is_16bit(dtype) != takes_16bit() || dtype == DType::kFloat64) return false;
  const bool wants_hopper = runs == Runs::kHopper || runs == Runs::kHopper16Bit;
  return !wants_hopper || context.on_host() || context.on_hopper();
}

std::pair<int, int> Rung::tile(const Problem& p, const Context& context) const {
  const std::optional<Plan> plan = plan_of(*this, p, context);
  return plan ? std::pair(plan->m, plan->n) : std::pair(tile_m, tile_n);
}

bool Rung::takes(const Problem& p) const {
  if (p.k < min_k || (max_k != 0 && p.k > max_k)) return false;
  // Places in a tensor map, and in what is read by one, are 32-bit, those of a tile that begins
  // beyond the last one, too.
  constexpr int64_t kMaxPlace = std::numeric_limits<int32_t>::max() - 1024;
  if (reads != Reads::kAny && std::max({p.m, p.n, p.k}) > kMaxPlace) return false;
  switch (reads) {
    case Reads::kAny: return true;
    case Reads::kSides:
    case Reads::kCopied: return fits_tma_rank(p.batch, p.a) && fits_tma_rank(p.batch, p.b);
    case Reads::kBoxes: return is_tma_aligned(p.batch, longer(p));
    case Reads::kLines: return is_k_major_aligned(p);
    case Reads::kNeighbours:
      return fits_tma_rank(p.batch, p.a) && fits_tma_rank(p.batch, p.b) &&
             has_unit_stride(mma_unaligned_operand(p)) &&
             !is_tma_aligned(p.batch, mma_unaligned_operand(p), size_of(p.dtype));
  }
  return false;
}

int64_t Rung::blocks(const Problem& p, const Context& context) const {
  const bool by_sides = cut == Cut::kChunks;
  const int64_t rows = by_sides ? std::min(p.m, p.n) : p.m;
  const int64_t cols = by_sides ? std::max(p.m, p.n) : p.n;
  const int64_t tiles = ceil_div(rows, tile_m) * ceil_div(cols, tile_n) * p.batch.count;
  switch (cut) {
    case Cut::kNever: return tiles;
    case Cut::kChunks: return tiles * std::max<int64_t>(1, ceil_div(p.k, kChunk));
    case Cut::kRanges: return tiles * bulk_ranges(p, context.sms).count;
    case Cut::kSimtCpAsyncPlan:
    case Cut::kSimtTmaPlan:
    case Cut::kSimtSmallPlan:
    case Cut::kSimtSkinnyPlan:
    case Cut::kMmaSyncPlan:
    case Cut::kMmaUnalignedPlan:
    case Cut::kMmaTmaPlan:
    case Cut::kTf32TmaPlan: {
      const Plan plan = *plan_of(*this, p, context);
      return count_tiles(p, plan.m, plan.n) * plan.ranges;
    }
  }
  return 0;
}

int64_t Rung::waves(const Problem& p, const Context& context) const {
  return ceil_div(blocks(p, context), context.sms);
}

double Rung::clocks(const Problem& p, const Context& context) const {
  const bool as_it_lies =
      reads == Reads::kSides || reads == Reads::kCopied || reads == Reads::kNeighbours;
  const auto lies_well = [&](const Matrix& matrix, int64_t lines) {
    if (reads == Reads::kSides) return is_tma_aligned_mn_major(p.batch, matrix);
    return !mma_must_align(p, matrix, lines);
  };
  const bool takes_b = reads == Reads::kNeighbours && mma_unaligned_swaps_ab(p);  // whatever its lines
  const bool takes_a = reads == Reads::kNeighbours && !takes_b;
  const bool has_a = takes_a || (as_it_lies && lies_well(p.a, p.m));
  const bool has_b =
      takes_b || p.b_presplit.hi_lo != nullptr || (as_it_lies && lies_well(transposed(p.b), p.n));
  const int64_t rows = has_a ? 0 : p.m, cols = has_b ? 0 : p.n;
  const double lines =
      static_cast<double>(rows + cols) * static_cast<double>(p.batch.count) / context.sms;
  const double rewritten = lines * std::max(static_cast<double>(p.k) * before, before_line);
  // To copy operands beforehand takes one launch more (for mma's rungs see mma.h).
  constexpr double kCopyStart = 3000;
  const double copies = reads == Reads::kSides && rows + cols > 0 ? kCopyStart : 0;
  const double fixed = start + copies + rewritten;
  if (cut == Cut::kRanges) return fixed + bulk_ranges(p, context.sms).clocks;
  if (const auto plan = plan_of(*this, p, context)) return fixed + plan->clocks;
  const int64_t k = cut == Cut::kChunks ? std::min<int64_t>(p.k, kChunk) : p.k;
  const double multiply_adds = static_cast<double>(tile_m) * tile_n * static_cast<double>(k);
  // A rung that cuts K copies the longer operand by fours where it can, or else by single elements.
  constexpr double kByOnes = 2.5;
  const auto [near, far] = std::minmax(longer(p).row_stride, longer(p).col_stride);
  const double copied = cut == Cut::kNever || (near == 1 && far % 4 == 0) ? 1 : kByOnes;
  return fixed + static_cast<double>(waves(p, context)) * (wave + multiply_adds / rate) * copied;
}

std::vector<std::string> algorithms() {
  std::vector<std::string> names;
  for (const Rung* rung = std::begin(kLadder); rung != std::end(kLadder); ++rung) {
    names.emplace_back(rung->name);
    const Rung* next = rung + 1;
    const bool last_of_family = next == std::end(kLadder) || next->family != rung->family;
    if (last_of_family && rung->family != rung->name) names.emplace_back(rung->family);
  }
  return names;
}

const Rung& pick(std::string_view algorithm, const Problem& p, const Context& context) {
  const std::vector<const Rung*> rungs = candidates(algorithm, p, context);
  const Rung* best = rungs.front();
  double fewest = best->clocks(p, context);
  for (const Rung* rung : std::span(rungs).subspan(1)) {  // the clocks of each once
    const double clocks = rung->clocks(p, context);
    if (std::pair(clocks, -rung->rate) < std::pair(fewest, -best->rate)) {
      best = rung, fewest = clocks;
    }
  }
  return *best;
}

std::vector<std::pair<std::string, std::string>> explain(std::string_view algorithm,
                                                         const Problem& p, const Context& context) {
  const Rung& chosen = pick(algorithm, p, context);
  std::vector<std::string> others;
  for (const Rung* rung : candidates(algorithm, p, context)) {
    if (rung == &chosen) continue;
    others.push_back(std::string(rung->name) + " " + format("%.3g", rung->clocks(p, context)));
  }
  const auto [tile_m, tile_n] = chosen.tile(p, context);
  const int64_t blocks = chosen.blocks(p, context);
  const int64_t waves = chosen.waves(p, context);
  std::vector<std::pair<std::string, std::string>> facts{
      {"algorithm", std::string(chosen.name)},
      {"tile", std::to_string(tile_m) + "x" + std::to_string(tile_n)},
      {"blocks", std::to_string(blocks)},
      {"waves",
       std::to_string(waves) + " of " + std::to_string(context.sms) + " sms"},
      {"clocks", format("%.3g", chosen.clocks(p, context)) + " by the model"},
      {"why",
       others.empty() ? "the only rung of this name" : "fewest clocks, against " + join(others)},
      {"order", describe(chosen.order, p.k)},
  };
  if (is_guarded(chosen.order)) {
    const int chunk = chosen.order == Order::kTf32 ? mma_order::kChunk : kChunk;
    const int64_t chunks = ceil_div(p.k, chunk);
    facts.emplace_back("scale_groups", std::to_string(p.m * chunks) + " of a's rows and " +
                                           std::to_string(p.n * chunks) +
                                           " of b's columns in a matrix, one a chunk");
  }
  return facts;
}

}  // namespace tiled
