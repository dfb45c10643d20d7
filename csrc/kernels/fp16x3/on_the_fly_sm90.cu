// The host's side of splitting in flight, and the addition of chunks' sums.

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/epilogue.h"
#include "core/order_chunked.h"
#include "kernels/common/launch.h"
#include "kernels/fp16x3/on_the_fly.h"
#include "kernels/fp16x3/parts.h"
#include "kernels/fp16x3/recompute.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 5;  // a multiprocessor, at least: marked elements take most registers

// kAtOnce columns of a row of sums a thread.
template <int kAtOnce>
__global__ void __launch_bounds__(kThreads, kBlocks)
    fp16x3_on_the_fly_reduce_kernel(const __grid_constant__ InFlight work) {
  ptx::pdl_launch_dependents();
  const auto in_line = static_cast<unsigned>(work.sums_stride() / kAtOnce);
  const auto rows = static_cast<unsigned>(work.x_count);
  const uint64_t index = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto line = static_cast<unsigned>(index / in_line);
  const unsigned col = static_cast<unsigned>(index % in_line) * kAtOnce;
  const int64_t in_launch = line / rows, x_row = line % rows;
  const int64_t w_col = work.first_unit * work.cols + col;
  const bool exists = in_launch < work.matrices && w_col < work.w_count;
  const int64_t chunk_stride = work.x_count * work.sums_stride();
  const int64_t at = in_launch * work.chunks * chunk_stride + x_row * work.sums_stride() + col;
  const float* sums = work.sums + (exists ? at : 0);
  const int64_t matrix = work.first_matrix + (exists ? in_launch : 0);
  const int64_t c_offset = batch_offset(work.p.batch, work.p.c, matrix);
  ptx::pdl_wait();
  float sum[kAtOnce];
  UNROLL
  for (float& each : sum) each = kAddIdentity<float>;
  constexpr unsigned kAhead = kAtOnce == 1 ? 8 : 4;
  NO_UNROLL
  for (unsigned chunk = 0; chunk < work.chunks; chunk += kAhead) {
    using Vector = std::conditional_t<kAtOnce == 1, float, float4>;
    static_assert(sizeof(Vector) == kAtOnce * sizeof(float));
    Vector of_chunk[kAhead];
    UNROLL
    for (unsigned i = 0; i < kAhead; ++i) {
      const float* from = sums + min(chunk + i, work.chunks - 1) * chunk_stride;
      of_chunk[i] = __ldcg(reinterpret_cast<const Vector*>(from));
    }
    UNROLL
    for (unsigned i = 0; i < kAhead; ++i) {
      UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const float each = reinterpret_cast<const float*>(&of_chunk[i])[j];
        sum[j] += chunk + i < work.chunks ? each : -0.0f;  // -0 changes nothing
      }
    }
  }
  auto row_of = [&](int j) { return work.w_is_a ? w_col + j : x_row; };
  auto col_of = [&](int j) { return work.w_is_a ? x_row : w_col + j; };
  unsigned marks = 0;
  UNROLL
  for (int j = 0; j < kAtOnce; ++j) {
    if (!exists || w_col + j >= work.w_count) break;
    if (isnan(sum[j])) {
      marks |= 1u << j;
    } else {
      store<float>(work.p, c_offset, row_of(j), col_of(j), sum[j]);
    }
  }
  if (!__any_sync(~0u, marks != 0)) return;
  NO_UNROLL
  for (int j = 0; j < kAtOnce; ++j, marks >>= 1) {
    const bool marked = (marks & 1) != 0;
    const float again =
        sum_if_marked(work.p, marked, matrix, row_of(j), col_of(j), work.recomputed);
    if (marked) store_one(work.p, c_offset, row_of(j), col_of(j), again);
  }
}

// As many as there are sms. But a block that has parts of two stretches brings x twice, and
// has its teams wait for each other between: where little else is lost, each has one stretch alone.
unsigned blocks_of(const InFlight& work, int teams, const Context& context) {
  const unsigned stretches = work.stretches();
  const auto sms = static_cast<unsigned>(context.sms);
  const unsigned each = std::min(sms / stretches, work.units);
  const bool one_round = each * teams >= work.units;
  if (each > 0 && (one_round || each * stretches * 8 >= sms * 7)) return each * stretches;
  return static_cast<unsigned>(std::min<uint64_t>(uint64_t{stretches} * work.units, sms));
}

// How much of a product one launch takes, so that there is room for its sums.
struct Piece {
  int64_t matrices, units, unit_bytes;

  explicit Piece(const InFlight& work) {
    const int64_t all_units = ceil_div(work.w_count, work.cols);
    unit_bytes = int64_t{work.chunks} * work.x_count * work.cols * int64_t{sizeof(float)};
    const int64_t room = std::max(work.max_sums_bytes / unit_bytes, int64_t{1});
    units = std::min(all_units, room);
    matrices = std::min(work.p.batch.count, std::max(room / all_units, int64_t{1}));
  }
};

}  // namespace

InFlight in_flight(const Problem& p, int cols, int max_rows, int64_t max_sums_bytes) {
  InFlight work{};
  work.p = p;
  work.w_is_a = p.m > p.n;
  work.w = work.w_is_a ? p.a : p.b;
  work.x = work.w_is_a ? p.b : p.a;
  Matrix& by_columns = work.w_is_a ? work.x : work.w;
  by_columns = transposed(by_columns);
  work.w_along_k = work.w.col_stride < work.w.row_stride;
  const auto [near, far] = std::minmax(work.w.row_stride, work.w.col_stride);
  work.w_in_fours = is_vector_aligned<float4>(p.batch, work.w, near, far);
  work.x_in_fours = p.k % 4 == 0 && is_vector_aligned<float4>(p.batch, work.x, work.x.col_stride,
                                                              work.x.row_stride);
  work.w_count = std::max(p.m, p.n);
  work.x_count = std::min(p.m, p.n);
  work.cols = cols;
  work.panel_rows = max_rows;
  work.panels = static_cast<unsigned>(ceil_div(work.x_count, max_rows));
  work.chunks = static_cast<unsigned>(ceil_div(p.k, kChunk));
  work.max_sums_bytes = max_sums_bytes;
  work.presplit_x = {.rows = work.x_count, .k = p.k};
  return work;
}

int64_t sums_bytes(const InFlight& work) {
  const int64_t all = work.p.batch.count * ceil_div(work.w_count, work.cols);
  const int64_t unit_bytes = Piece(work).unit_bytes;
  return std::max(std::min(all * unit_bytes, work.max_sums_bytes), unit_bytes);
}

void run_in_flight(InFlight& work, int teams, const Context& context, void* sums,
                   const std::function<void(unsigned blocks)>& launch) {
  work.sums = static_cast<float*>(sums);
  const RecomputedCounter counter(context);
  work.recomputed = counter.on_gpu();
  const Piece piece(work);
  const int64_t all_units = ceil_div(work.w_count, work.cols), batch = work.p.batch.count;
  for (work.first_matrix = 0; work.first_matrix < batch; work.first_matrix += piece.matrices) {
    work.matrices = static_cast<unsigned>(std::min(piece.matrices, batch - work.first_matrix));
    for (work.first_unit = 0; work.first_unit < all_units; work.first_unit += piece.units) {
      work.units = static_cast<unsigned>(std::min(piece.units, all_units - work.first_unit));
      launch(blocks_of(work, teams, context));
      const int64_t elements = work.matrices * work.x_count * work.sums_stride();
      auto finish = [&](int at_once, auto kernel) {
        const auto blocks = static_cast<unsigned>(ceil_div(elements, kThreads * at_once));
        launch_pdl(kernel, blocks, kThreads, 0, context, work);
      };
      constexpr int64_t kFew = 1 << 17;  // sooner done by as many threads
      if (elements <= kFew) {
        finish(1, fp16x3_on_the_fly_reduce_kernel<1>);
      } else {
        finish(4, fp16x3_on_the_fly_reduce_kernel<4>);
      }
    }
  }
  counter.read();
}

}  // namespace tiled::cuda
