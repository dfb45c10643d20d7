// Copies operands of halves to lines that begin at multiples of 128 bytes, or of 16 if they are
// shorter and along K. A thread copies eight elements of a line, or of two where there are many,
// and some threads a part of it; or, where what follows each other lies across lines, a warp eight
// elements of 32.

#include <algorithm>

#include "device/pipeline.cuh"
#include "kernels/load_halves.cuh"
#include "kernels/mma_lines.h"
#include "kernels/stored_batch.h"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kLanes = 8, kParts = 32 / kLanes;                 // of a part, of a warp
constexpr int kPart = kLanes * kEight;                          // elements
constexpr int64_t kLine = kL2Line / int64_t{sizeof(uint16_t)};  // of L2, likewise

struct Job {
  Matrix from;  // row_stride: between lines; col_stride: of their elements
  Batch batch;  // of matrices that are stored
  uint16_t* to;
  int64_t lines, length, pitch;  // of a matrix, of a line
  bool across;                   // neighbours lie across lines
  uint32_t parts, groups;        // that warps copy, of a line, and of lines
  int64_t warps;
};

struct Jobs {
  Job job[2];
};

// kLines: of which a thread copies eights, reading all before it stores any.
template <int kLines>
__global__ void __launch_bounds__(kThreads) copy_lines_kernel(const __grid_constant__ Jobs jobs) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // and set up its barriers
  int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const bool second = warp >= jobs.job[0].warps;
  if (second) warp -= jobs.job[0].warps;
  const Job& job = jobs.job[second];
  if (warp >= job.warps) return;
  const uint32_t lane = threadIdx.x % 32;
  const auto index = static_cast<uint32_t>(job.across ? warp : warp * kParts + lane / kLanes);
  const uint32_t part = index % job.parts, group = index / job.parts % job.groups;
  const int64_t matrix = index / job.parts / job.groups;
  const int64_t stride = job.from.col_stride;
  const int64_t line = int64_t{group} * (job.across ? 32 : kLines) + (job.across ? lane : 0);
  const int64_t first =
      int64_t{part} * (job.across ? kEight : kPart) + (job.across ? 0 : lane % kLanes * kEight);
  const auto left = static_cast<int>(min(job.length - first, int64_t{kEight}));
  if (left <= 0 || line >= job.lines || matrix >= job.batch.count) return;
  const auto* data =
      static_cast<const uint16_t*>(job.from.data) + batch_offset(job.batch, job.from, matrix);
  const uint16_t* from = data + line * job.from.row_stride + first * stride;
  uint16_t* to = job.to + (matrix * job.lines + line) * job.pitch + first;
  if (job.across) {
    __stcg(reinterpret_cast<uint4*>(to), gather(from, stride, left));
    return;
  }
  // Of what memory may end in there is no more than the matrix.
  const uint16_t* end = data + (job.lines - 1) * job.from.row_stride + job.length;
  const auto lines = static_cast<int>(min(job.lines - line, int64_t{kLines}));
  uint4 near[kLines], far[kLines];
  bool whole[kLines];
  UNROLL
  for (int i = 0; i < kLines; ++i) {
    const uint16_t* own = from + i * job.from.row_stride;
    const auto* sixteen = reinterpret_cast<const uint4*>(own - shift_of(own) / 2);
    const bool both = shift_of(own) / 2 + left > kEight;
    whole[i] =
        i < lines && stride == 1 && reinterpret_cast<const uint16_t*>(sixteen + 1 + both) <= end;
    near[i] = far[i] = make_uint4(0, 0, 0, 0);
    if (whole[i]) near[i] = sixteen[0];
    if (whole[i] && both) far[i] = sixteen[1];
  }
  UNROLL
  for (int i = 0; i < kLines; ++i) {
    const uint16_t* own = from + i * job.from.row_stride;
    if (i >= lines) return;
    __stcg(reinterpret_cast<uint4*>(to + i * job.pitch),
           whole[i] ? shifted(near[i], far[i], shift_of(own)) : gather(own, stride, left));
  }
}

}  // namespace

std::optional<Problem> in_lines_of_halves(const Problem& p, const Context& context, bool only_b) {
  Problem copied = p;
  Matrix* operands[] = {&copied.a, &copied.b};
  const int64_t rows[] = {p.m, p.k}, cols[] = {p.k, p.n};
  Jobs jobs{};
  int64_t bytes = 0, begins[2]{};
  for (int i = only_b ? 1 : 0; i < 2; ++i) {
    const Matrix& from = *operands[i];
    const Matrix outer = i == 0 ? from : transposed(from);  // A's rows, or B's columns
    const int64_t count = i == 0 ? p.m : p.n;
    if (!mma_has_to_copy(p, outer, count)) continue;
    const bool wants_k = mma_turns_to_k(p, outer, count);
    Job& job = jobs.job[i];
    // Lines are rows, or else columns. What is one line is that, whatever its strides are.
    const bool closer_by_rows =
        rows[i] == 1 || (cols[i] != 1 && from.col_stride <= from.row_stride);
    const bool by_rows = wants_k ? i == 0 : closer_by_rows;
    job.lines = by_rows ? rows[i] : cols[i], job.length = by_rows ? cols[i] : rows[i];
    job.across = by_rows != closer_by_rows;
    // Lines begin where L2's do, so that a box asks for each once; unless they are shorter and
    // along K, where what is beyond their end has to be zeros.
    const bool along_k = by_rows == (i == 0);
    const int64_t multiple = job.length >= kLine || !along_k ? kLine : kEight;
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
  const auto share_out = [&](int lines) {  // of which a thread copies eights
    int64_t warps = 0;
    for (Job& job : jobs.job) {
      if (job.lines == 0) continue;
      job.parts = static_cast<uint32_t>(ceil_div(job.length, job.across ? kEight : kPart));
      job.groups = static_cast<uint32_t>(ceil_div(job.lines, job.across ? 32 : lines));
      const int64_t all = int64_t{job.parts} * job.groups * job.batch.count;
      job.warps = ceil_div(all, job.across ? 1 : kParts);
      warps += job.warps;
    }
    return warps;
  };
  for (int i = 0; i < 2; ++i) {
    if (jobs.job[i].lines == 0) continue;
    operands[i]->data = static_cast<uint8_t*>(workspace) + begins[i];
    jobs.job[i].to = static_cast<uint16_t*>(operands[i]->data);
  }
  constexpr int kAtOnce = 2048 / 32;  // warps that a multiprocessor runs
  int64_t warps = share_out(1);
  const bool many = warps > kAtOnce * context.processors;
  if (many) warps = share_out(2);
  launch_after(many ? copy_lines_kernel<2> : copy_lines_kernel<1>,
               static_cast<unsigned>(ceil_div(warps, kWarps)), kThreads, 0, context, jobs);
  return copied;
}

}  // namespace tiled::cuda
