#include "ladder.h"

#include <algorithm>
#include <cstdio>

#include "fail.h"
#include "sum.h"

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
}  // namespace cuda

namespace cpu {
void launch_naive(const Problem&, const Context&);
void launch_tiled16(const Problem&, const Context&);
void launch_tiled32(const Problem&, const Context&);
void launch_tiled64(const Problem&, const Context&);
}  // namespace cpu

namespace {

// clang-format off
constexpr Rung kLadder[] = {
    // name      family   tile    rate  auto   CUDA                  CPU
    {"naive",   "naive",  32, 32, 13,   false, CUDA(launch_naive),   cpu::launch_naive},
    {"tiled16", "tiled",  16, 16, 14,   true,  CUDA(launch_tiled16), cpu::launch_tiled16},
    {"tiled32", "tiled",  32, 32, 16,   true,  CUDA(launch_tiled32), cpu::launch_tiled32},
    {"tiled64", "tiled",  64, 64, 47,   true,  CUDA(launch_tiled64), cpu::launch_tiled64},
};
// clang-format on

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool answers_to(const Rung& rung, std::string_view algorithm) {
  return algorithm == "auto" ? rung.automatic : rung.name == algorithm || rung.family == algorithm;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

}  // namespace

int64_t Rung::blocks(const Problem& p) const {
  return ceil_div(p.m, tile_m) * ceil_div(p.n, tile_n) * p.batch.count;
}

int64_t Rung::waves(const Problem& p, const Context& context) const {
  return ceil_div(blocks(p), context.processors);
}

double Rung::clocks(const Problem& p, const Context& context) const {
  const double multiply_adds = static_cast<double>(tile_m) * tile_n * static_cast<double>(p.k);
  return static_cast<double>(waves(p, context)) * multiply_adds / rate;
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

void check_offered(const char* op, Precision precision, DType dtype) {
  if (precision == Precision::kTf32 && dtype == DType::kFloat32) {
    fail(op, "no rung offers precision tf32 yet; choose fp32 or ieee");
  }
}

const Rung& pick(std::string_view algorithm, const Problem& p, const Context& context) {
  check_offered(p.op, p.precision, p.dtype);
  const Rung* best = nullptr;
  for (const Rung& rung : kLadder) {
    if (!answers_to(rung, algorithm)) continue;
    if (best == nullptr || rung.clocks(p, context) <= best->clocks(p, context)) best = &rung;
  }
  if (best == nullptr) {
    fail(p.op, "there is no algorithm \"" + std::string(algorithm) + "\"; choose auto, " +
                   join(algorithms()));
  }
  return *best;
}

std::vector<std::pair<std::string, std::string>> explain(std::string_view algorithm,
                                                         const Problem& p, const Context& context) {
  const Rung& chosen = pick(algorithm, p, context);
  std::vector<std::string> others;
  for (const Rung& rung : kLadder) {
    if (!answers_to(rung, algorithm) || &rung == &chosen) continue;
    others.push_back(std::string(rung.name) + " " + format("%.3g", rung.clocks(p, context)));
  }
  const int64_t blocks = chosen.blocks(p);
  const int64_t waves = chosen.waves(p, context);
  const int64_t chunks = std::max<int64_t>(1, ceil_div(p.k, kChunk));
  return {
      {"algorithm", std::string(chosen.name)},
      {"tile", std::to_string(chosen.tile_m) + "x" + std::to_string(chosen.tile_n)},
      {"blocks", std::to_string(blocks)},
      {"waves",
       std::to_string(waves) + " of " + std::to_string(context.processors) + " processors"},
      {"clocks", format("%.3g", chosen.clocks(p, context)) + " by the model"},
      {"why",
       others.empty() ? "the only rung of this name" : "fewest clocks, against " + join(others)},
      {"order", chosen.automatic ? std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks") +
                                       " of at most " + std::to_string(kChunk) +
                                       " in K, each ascending, added in order"
                                 : "ascending in K"},
  };
}

}  // namespace tiled
