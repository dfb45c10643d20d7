// Copies operands of halves to lines that begin at multiples of 16 bytes, or of 128 if they are
// long. A warp copies a part of a line, eight elements a thread at a time.

#include <algorithm>

#include "device/pipeline.cuh"
#include "kernels/mma_lines.h"
#include "kernels/stored_batch.h"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kEight = 8, kRound = 32 * kEight;  // elements a thread, a warp at a time
// Elements of L2's lines, at which long lines begin, so that a box asks for each once.
constexpr int kLine = kL2Line / sizeof(uint16_t);

struct Job {
  Matrix from;  // row_stride: between lines; col_stride: of their elements
  Batch batch;  // of matrices that are stored
  uint16_t* to;
  int64_t lines, length, pitch, parts;  // of a matrix, of a line
  int64_t warps;
};

struct Jobs {
  Job job[2];
};

// A warp's part of a line takes so many rounds, whose loads are all asked for at once.
template <int kRounds>
__global__ void __launch_bounds__(kThreads) copy_lines_kernel(const __grid_constant__ Jobs jobs) {
  constexpr int kPart = kRounds * kRound;
  device::let_next_kernel_start();  // and set up its barriers
  int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const bool second = warp >= jobs.job[0].warps;
  if (second) warp -= jobs.job[0].warps;
  const Job& job = jobs.job[second];
  if (warp >= job.warps) return;
  const int64_t part = warp % job.parts, line = warp / job.parts % job.lines;
  const int64_t matrix = warp / job.parts / job.lines;
  const int64_t stride = job.from.col_stride;
  const int64_t first = part * kPart + threadIdx.x % 32 * kEight;
  const auto* from = static_cast<const uint16_t*>(job.from.data) +
                     batch_offset(job.batch, job.from, matrix) + line * job.from.row_stride +
                     first * stride;
  uint16_t* to = job.to + (matrix * job.lines + line) * job.pitch + first;
  const auto left = static_cast<int>(min(job.length - first, int64_t{kPart}));
  UNROLL
  for (int i = 0; i < kPart; i += kRound) {
    uint32_t x[kEight];
    UNROLL
    for (int j = 0; j < kEight; ++j) x[j] = i + j < left ? from[(i + j) * stride] : 0;
    if (i < left) {
      __stcg(reinterpret_cast<uint4*>(to + i), make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16,
                                                          x[4] | x[5] << 16, x[6] | x[7] << 16));
    }
  }
}

}  // namespace

std::optional<Problem> in_lines_of_halves(const Problem& p, const Context& context, bool a_too) {
  Problem copied = p;
  Matrix* operands[] = {&copied.a, &copied.b};
  const int64_t rows[] = {p.m, p.k}, cols[] = {p.k, p.n};
  Jobs jobs{};
  int64_t bytes = 0, begins[2]{};
  for (int i = a_too ? 0 : 1; i < 2; ++i) {
    const Matrix& from = *operands[i];
    const bool wants_k =
        i == 0 ? mma_turns_to_k(from, p.m, p.k) : mma_turns_to_k(transposed(from), p.n, p.k);
    if (in_boxes(p.batch, from, sizeof(uint16_t)) && !wants_k) continue;
    Job& job = jobs.job[i];
    // Lines are rows, or else columns. What is one line is that, whatever its strides are.
    const bool closer_by_rows =
        rows[i] == 1 || (cols[i] != 1 && from.col_stride <= from.row_stride);
    const bool by_rows = wants_k ? i == 0 : closer_by_rows;
    job.lines = by_rows ? rows[i] : cols[i], job.length = by_rows ? cols[i] : rows[i];
    const int64_t multiple = job.length < 8 * kLine ? kEight : kLine;
    job.pitch = ceil_div(job.length, multiple) * multiple;
    Matrix to{.data = nullptr,
              .row_stride = by_rows ? job.pitch : 1,
              .col_stride = by_rows ? 1 : job.pitch};
    const StoredBatch stored = stored_batch(p.batch, from, job.lines * job.pitch, to);
    job.batch = stored.batch;
    job.from = by_rows ? stored.from : transposed(stored.from);
    begins[i] = bytes;
    bytes += job.batch.count * job.lines * job.pitch * int64_t{sizeof(uint16_t)};
    *operands[i] = to;
  }
  if (bytes == 0) return copied;
  void* workspace = context.allocate_if_there_is(bytes);
  if (workspace == nullptr) return std::nullopt;
  int64_t elements = 0;
  for (int i = 0; i < 2; ++i) {
    Job& job = jobs.job[i];
    if (job.lines == 0) continue;
    operands[i]->data = static_cast<uint8_t*>(workspace) + begins[i];
    job.to = static_cast<uint16_t*>(operands[i]->data);
    elements += job.lines * job.batch.count * job.length;
  }
  // Many rounds for what is much; what is little is shared out among more warps.
  constexpr int kRounds = 8, kEnough = 16;  // warps a multiprocessor
  const auto run = [&]<int kRoundsOf>() {
    int64_t warps = 0;
    for (Job& job : jobs.job) {
      job.parts = ceil_div(job.length, int64_t{kRoundsOf} * kRound);
      job.warps = job.parts * job.lines * job.batch.count;
      warps += job.warps;
    }
    copy_lines_kernel<kRoundsOf><<<static_cast<unsigned>(ceil_div(warps, kWarps)), kThreads, 0,
                                   static_cast<cudaStream_t>(context.stream)>>>(jobs);
  };
  if (elements < int64_t{kEnough} * context.processors * kRounds * kRound) {
    run.template operator()<1>();
  } else {
    run.template operator()<kRounds>();
  }
  check(cudaGetLastError());
  return copied;
}

}  // namespace tiled::cuda
