// The host's side of splitting on the fly (on_the_fly.cuh), and the kernel that adds the sums of
// chunks in order and stores C.

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/common/sub_problems.h"
#include "kernels/fp16x3/on_the_fly.cuh"
#include "kernels/fp16x3/plan.h"
#include "kernels/fp16x3/recompute_element.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocksPerSm = 5;  // at least; recomputing elements takes the most registers

// A thread adds kWidth adjacent columns of a row of sums.
template <int kWidth, Stored kStored>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fp16x3_on_the_fly_reduce_kernel(const __grid_constant__ OnTheFlyParams params) {
  ptx::pdl_launch_dependents();
  const auto threads_per_row = static_cast<unsigned>(params.sums_pitch() / kWidth);
  const auto rows = static_cast<unsigned>(params.short_count);
  const uint64_t index = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto launch_row = static_cast<unsigned>(index / threads_per_row);
  const unsigned launch_col = static_cast<unsigned>(index % threads_per_row) * kWidth;
  const int64_t launch_matrix = launch_row / rows, short_row = launch_row % rows;
  const int64_t long_col = params.first_col_tile * params.tile_cols + launch_col;
  const bool exists = launch_matrix < params.matrices && long_col < params.long_count;
  const int64_t chunk_stride = params.short_count * params.sums_pitch();
  const int64_t offset =
      launch_matrix * params.chunks * chunk_stride + short_row * params.sums_pitch() + launch_col;
  const float* first = params.partial_sums + (exists ? offset : 0);
  const int64_t matrix = params.first_matrix + (exists ? launch_matrix : 0);
  const int64_t c_offset = batch_offset(params.p.batch, params.p.c, matrix);
  ptx::pdl_wait();
  float sum[kWidth];
  UNROLL
  for (float& each : sum) each = kAddIdentity<float>;
  constexpr unsigned kAhead = kWidth == 1 ? 8 : 4;  // chunks that are loaded together
  NO_UNROLL
  for (unsigned chunk = 0; chunk < params.chunks; chunk += kAhead) {
    using Vector = std::conditional_t<kWidth == 1, float, float4>;
    static_assert(sizeof(Vector) == kWidth * sizeof(float));
    Vector loaded[kAhead];
    UNROLL
    for (unsigned i = 0; i < kAhead; ++i) {
      const float* from = first + min(chunk + i, params.chunks - 1) * chunk_stride;
      loaded[i] = __ldcg(reinterpret_cast<const Vector*>(from));
    }
    UNROLL
    for (unsigned i = 0; i < kAhead; ++i) {
      UNROLL
      for (int j = 0; j < kWidth; ++j) {
        const float each = reinterpret_cast<const float*>(&loaded[i])[j];
        sum[j] += chunk + i < params.chunks ? each : -0.0f;  // adding -0 changes nothing
      }
    }
  }
  const auto element = [&](int j) { return params.element(short_row, long_col + j); };
  unsigned flags = 0;
  UNROLL
  for (int j = 0; j < kWidth; ++j) {
    if (!exists || long_col + j >= params.long_count) break;
    if (params.diagonal != 0 &&
        params.diagonal_col(short_row % params.panel_rows) != long_col + j) {
      continue;
    }
    if (isnan(sum[j])) {
      flags |= 1u << j;
    } else {
      const auto [row, col] = element(j);
      store<float>(params.p, c_offset, row, col, sum[j]);
    }
  }
  if (!__any_sync(~0u, flags != 0)) return;
  if (params.recompute.count != nullptr) {
    NO_UNROLL
    for (int j = 0; flags != 0; ++j, flags >>= 1) {
      const auto [row, col] = element(j);
      if ((flags & 1) != 0) append_element(params.recompute, matrix, row, col);
    }
    return;
  }
  NO_UNROLL
  for (int j = 0; j < kWidth; ++j, flags >>= 1) {
    const bool flagged = (flags & 1) != 0;
    const auto [row, col] = element(j);
    float recomputed = 0;
    if constexpr (kStored == Stored::kMixed) {
      if (flagged) {
        recomputed = recompute_mixed(params.p, params.narrow, matrix, row, col, params.recomputed);
      }
    } else if constexpr (kStored == Stored::kComplexB) {
      if (flagged) {
        recomputed =
            recompute_complex(params.p, params.signs_of_b, matrix, row, col, params.recomputed);
      }
    } else {
      recomputed = recompute_if_flagged(params.p, flagged, matrix, row, col, params.recomputed);
    }
    if (flagged) store_noinline(params.p, c_offset, row, col, recomputed);
  }
}

// The blocks of a launch: one on each SM. A block with tiles of two panel chunks loads two panels,
// and its warps wait for each other in between. So if that leaves few SMs without work, each
// block takes tiles of a single panel chunk.
unsigned launch_blocks(const OnTheFlyParams& params, int tiles_at_once, const Context& context) {
  const unsigned panel_chunks = params.panel_chunks();
  const auto sms = static_cast<unsigned>(context.sms);
  const unsigned each = std::min(sms / panel_chunks, params.col_tiles);
  const bool one_round = each * tiles_at_once >= params.col_tiles;
  if (each > 0 && (one_round || each * panel_chunks * 8 >= sms * 7)) return each * panel_chunks;
  return static_cast<unsigned>(std::min<uint64_t>(uint64_t{panel_chunks} * params.col_tiles, sms));
}

// How much of the problem a launch computes, so that its sums fit in max_sums_bytes.
struct LaunchSize {
  int64_t matrices, col_tiles;
  int64_t col_tile_bytes;  // of the sums of a matrix's work tiles of the same columns

  explicit LaunchSize(const OnTheFlyParams& params) {
    const int64_t all_col_tiles = ceil_div(params.long_count, params.tile_cols);
    col_tile_bytes =
        int64_t{params.chunks} * params.short_count * params.tile_cols * int64_t{sizeof(float)};
    const int64_t room = std::max(params.max_sums_bytes / col_tile_bytes, int64_t{1});
    col_tiles = std::min(all_col_tiles, room);
    matrices = std::min(params.p.batch.count, std::max(room / all_col_tiles, int64_t{1}));
  }
};

void launch_reduce(const OnTheFlyParams& params, const Context& context) {
  const int64_t elements = params.matrices * params.short_count * params.sums_pitch();
  const auto launch = [&](int width, auto kernel) {
    const auto blocks = static_cast<unsigned>(ceil_div(elements, kThreads * width));
    launch_pdl(kernel, blocks, kThreads, 0, context, params);
  };
  constexpr int64_t kFew = 1 << 17;  // elements; so few need a thread each to hide latency
  const auto kernel_for = [&]<int kWidth>() {
    switch (params.stored) {
      case Stored::kMixed: return fp16x3_on_the_fly_reduce_kernel<kWidth, Stored::kMixed>;
      case Stored::kFloat32: return fp16x3_on_the_fly_reduce_kernel<kWidth, Stored::kFloat32>;
      default: return fp16x3_on_the_fly_reduce_kernel<kWidth, Stored::kComplexB>;
    }
  };
  if (elements <= kFew) {
    launch(1, kernel_for.template operator()<1>());
  } else {
    launch(4, kernel_for.template operator()<4>());
  }
}

}  // namespace

OnTheFlyParams on_the_fly_params(const Problem& p, const LongAndShort& sides, int tile_cols,
                                 int max_rows, const Narrow* narrow) {
  OnTheFlyParams params{};
  params.p = p;
  if (narrow != nullptr) params.stored = Stored::kMixed, params.narrow = *narrow;
  params.long_is_a = sides.long_is_a;
  params.long_operand = sides.long_operand, params.short_operand = sides.short_operand;
  params.long_count = sides.long_count, params.short_count = sides.short_count;
  const Matrix &long_operand = params.long_operand, &short_operand = params.short_operand;
  params.long_k_major = long_operand.col_stride < long_operand.row_stride;
  const auto [inner, outer] = std::minmax(long_operand.row_stride, long_operand.col_stride);
  // Elements of 16 bytes.
  const int64_t of_long = params.long_is_narrow() ? 8 : 4;
  const int64_t of_short = params.is_mixed() && !params.long_is_narrow() ? 8 : 4;
  params.long_vectorized =
      is_vector_aligned(p.batch, long_operand, inner, outer, of_long, 16 / of_long);
  params.short_vectorized =
      p.k % of_short == 0 && is_vector_aligned(p.batch, short_operand, short_operand.col_stride,
                                               short_operand.row_stride, of_short, 16 / of_short);
  params.tile_cols = tile_cols;
  params.panel_rows = max_rows;
  params.panels = static_cast<unsigned>(ceil_div(params.short_count, max_rows));
  params.chunks = static_cast<unsigned>(ceil_div(p.k, kChunk));
  params.adds_chunks = true;
  params.max_sums_bytes = kFp16x3MostSums;
  params.short_presplit = {.rows = params.short_count, .k = p.k};
  return params;
}

void run_on_the_fly(OnTheFlyParams& params, int tiles_at_once, const Context& context,
                    const std::function<void(unsigned blocks)>& launch) {
  const LaunchSize size(params);
  const int64_t all_col_tiles = ceil_div(params.long_count, params.tile_cols);
  const int64_t batch = params.p.batch.count;
  for (int64_t matrix = 0; matrix < batch; matrix += size.matrices) {
    for (int64_t col_tile = 0; col_tile < all_col_tiles; col_tile += size.col_tiles) {
      params.first_matrix = matrix;
      params.matrices = static_cast<unsigned>(std::min(size.matrices, batch - matrix));
      params.first_col_tile = col_tile;
      params.col_tiles = static_cast<unsigned>(std::min(size.col_tiles, all_col_tiles - col_tile));
      launch(launch_blocks(params, tiles_at_once, context));
      if (params.adds_chunks) launch_reduce(params, context);
    }
  }
}

bool run_with_sums(const Problem& p, const Plan& plan, const Narrow* narrow, const Context& context,
                   WorkspaceBytes (*workspace)(const Problem&, const Plan&, int64_t sms),
                   const std::function<void(const Problem& part, float* partial_sums,
                                            unsigned long long* recomputed)>& run) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  return with_recomputed_counter(context, [&](unsigned long long* recomputed) {
    const auto bytes = [&](const Problem& part) { return workspace(part, plan, context.sms)[0]; };
    const auto run_part = [&](const Problem& part, void* memory) {
      run(part, static_cast<float*>(memory), recomputed);
    };
    if (bytes(p) > 0 && narrow == nullptr) {
      return run_sub_problems(p, context, kLeast, bytes, run_part);
    }
    void* memory = bytes(p) > 0 ? context.allocate(bytes(p)) : nullptr;
    if (bytes(p) > 0 && memory == nullptr) return false;
    run_part(p, memory);
    return true;
  });
}

}  // namespace tiled::cuda
