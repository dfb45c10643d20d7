// Copies operands of halves to lines that begin at multiples of 128 bytes, or of 16 if they are
// shorter and along K. A thread copies eight elements of a line, or of two where there are many,
// and some threads a part of it; or, where what follows each other lies across lines, a warp eight
// elements of 32. Copies are asked to leave L2 last, and what is read first: were they written to
// memory, that would take as long as to read the operand. The next call's often lie where these
// did, and replace them.

#include <algorithm>

#include "device/copy_async.cuh"
#include "device/pipeline.cuh"
#include "kernels/divisor.cuh"
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
constexpr int64_t kMostPieces = (int64_t{1} << 31) - 1;         // that a Divisor tells apart

struct Job {
  Matrix from;  // row_stride: between lines; col_stride: of their elements
  Batch batch;  // of matrices that are stored
  uint16_t* to;
  int64_t pitch;           // of lines there
  uint32_t lines, length;  // of a matrix
  bool across;             // neighbours lie across lines
  Divisor parts, groups;   // of a line, and of lines, that are copied at a time
  uint32_t blocks;
};

struct Jobs {
  Job job[2];
};

// What is copied at a time: of a matrix some elements of some lines. Each is one of `by_lines` by
// `by_elements`, numbered along a line first; of it a thread begins at `line` and `first`.
struct Piece {
  const uint16_t *from, *end;  // of the matrix
  uint16_t* to;
  int lines, left;  // that there are, from there on
  __device__ Piece(const Job& job, uint32_t index, uint32_t by_lines, uint32_t by_elements,
                   uint32_t line, uint32_t first) {
    const uint32_t rest = job.parts.divide(index), matrix = job.groups.divide(rest);
    line += (rest - matrix * job.groups.by) * by_lines;
    first += (index - rest * job.parts.by) * by_elements;
    lines = matrix < job.batch.count ? static_cast<int>(job.lines - line) : 0;
    left = min(static_cast<int>(job.length - first), kEight);
    const auto* data =
        static_cast<const uint16_t*>(job.from.data) + batch_offset(job.batch, job.from, matrix);
    from = data + line * job.from.row_stride + first * job.from.col_stride;
    end = data + (job.lines - 1) * job.from.row_stride + job.length;
    to = job.to + (matrix * int64_t{job.lines} + line) * job.pitch + first;
  }
};

// Of elements that lie apart, or across lines.
template <int kLines>
__device__ void gather_piece(const Job& job, uint32_t block) {
  const uint32_t lane = threadIdx.x % 32, warp = block * kWarps + threadIdx.x / 32;
  const Piece piece = job.across ? Piece(job, warp, 32, kEight, lane, 0)
                                 : Piece(job, warp * kParts + lane / kLanes, kLines, kPart, 0,
                                         lane % kLanes * kEight);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int lines = piece.left <= 0 ? 0
                    : job.across    ? min(piece.lines, 1)
                                    : min(piece.lines, kLines);
  NO_UNROLL
  for (int i = 0; i < lines; ++i) {
    device::store_16(piece.to + i * job.pitch,
                     gather(piece.from + i * job.from.row_stride, job.from.col_stride, piece.left),
                     device::read_soon());
  }
}

// kLines: of which a thread copies eights, reading all before it stores any. Where those lie is
// found out before the previous kernel has ended.
template <int kLines>
__global__ void __launch_bounds__(kThreads) copy_lines_kernel(const __grid_constant__ Jobs jobs) {
  const bool second = blockIdx.x >= jobs.job[0].blocks;
  const Job& job = jobs.job[second];
  const uint32_t block = blockIdx.x - (second ? jobs.job[0].blocks : 0);
  if (job.across || job.from.col_stride != 1) return gather_piece<kLines>(job, block);
  const Piece piece(job, block * (kThreads / kLanes) + threadIdx.x / kLanes, kLines, kPart, 0,
                    threadIdx.x % kLanes * kEight);
  const uint4* sixteens[kLines];
  // Whether there is a line, both of the 16 bytes are asked for, and memory may end within them.
  bool reads[kLines], both[kLines], ends[kLines];
  int shift[kLines];
  UNROLL
  for (int i = 0; i < kLines; ++i) {
    const uint16_t* own = piece.from + i * job.from.row_stride;
    shift[i] = shift_of(own);
    sixteens[i] = reinterpret_cast<const uint4*>(own - shift[i] / 2);
    both[i] = shift[i] / 2 + piece.left > kEight;
    reads[i] = i < piece.lines && piece.left > 0;
    ends[i] = reinterpret_cast<const uint16_t*>(sixteens[i] + 1 + both[i]) > piece.end;
  }
  UNROLL
  for (int i = 0; i < kLines; ++i) asm volatile("" : "+l"(sixteens[i]));  // here, not later
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();  // and set up its barriers
  uint4 near[kLines], far[kLines];
  UNROLL
  for (int i = 0; i < kLines; ++i) {
    near[i] = far[i] = make_uint4(0, 0, 0, 0);
    if (reads[i] && !ends[i]) near[i] = __ldcs(sixteens[i]);
    if (reads[i] && !ends[i] && both[i]) far[i] = __ldcs(sixteens[i] + 1);
  }
  UNROLL
  for (int i = 0; i < kLines; ++i) {
    if (!reads[i]) return;
    const uint16_t* own = piece.from + i * job.from.row_stride;
    device::store_16(piece.to + i * job.pitch,
                     ends[i] ? gather(own, 1, piece.left) : shifted(near[i], far[i], shift[i]),
                     device::read_soon());
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
    const int64_t lines = by_rows ? rows[i] : cols[i], length = by_rows ? cols[i] : rows[i];
    job.lines = static_cast<uint32_t>(lines), job.length = static_cast<uint32_t>(length);
    job.across = by_rows != closer_by_rows;
    // Lines begin where L2's do, so that a box asks for each once; unless they are shorter and
    // along K, where what is beyond their end has to be zeros.
    const bool along_k = by_rows == (i == 0);
    const int64_t multiple = length >= kLine || !along_k ? kLine : kEight;
    job.pitch = ceil_div(length, multiple) * multiple;
    Matrix to{.data = nullptr,
              .row_stride = by_rows ? job.pitch : 1,
              .col_stride = by_rows ? 1 : job.pitch};
    const StoredBatch stored = stored_batch(p.batch, from, lines * job.pitch, to);
    job.batch = stored.batch;
    job.from = by_rows ? stored.from : transposed(stored.from);
    begins[i] = bytes;
    bytes += job.batch.count * lines * job.pitch * int64_t{sizeof(uint16_t)};
    *operands[i] = to;
  }
  if (bytes == 0) return copied;
  const auto share_out = [&](int by_lines) {  // of which a thread copies eights
    int64_t blocks = 0;
    for (Job& job : jobs.job) {
      if (job.lines == 0) continue;
      const int64_t parts = ceil_div(job.length, job.across ? kEight : kPart);
      const int64_t groups = ceil_div(job.lines, job.across ? 32 : by_lines);
      job.parts = Divisor::of(static_cast<uint32_t>(parts));
      job.groups = Divisor::of(static_cast<uint32_t>(groups));
      const int64_t by_block = job.across ? kWarps : kWarps * kParts;
      const int64_t own = ceil_div(parts * groups * job.batch.count, by_block);
      job.blocks = static_cast<uint32_t>(own);
      blocks += own;
    }
    return blocks;
  };
  constexpr int kAtOnce = 2048 / kThreads;  // blocks that a multiprocessor runs
  int64_t blocks = share_out(1);
  const bool many = blocks > kAtOnce * context.processors;
  if (many) blocks = share_out(2);
  if (blocks * kWarps * kParts > kMostPieces) return std::nullopt;
  void* workspace = context.allocate_if_there_is(bytes);
  if (workspace == nullptr) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    if (jobs.job[i].lines == 0) continue;
    operands[i]->data = static_cast<uint8_t*>(workspace) + begins[i];
    jobs.job[i].to = static_cast<uint16_t*>(operands[i]->data);
  }
  launch_after(many ? copy_lines_kernel<2> : copy_lines_kernel<1>, static_cast<unsigned>(blocks),
               kThreads, 0, context, jobs);
  return copied;
}

}  // namespace tiled::cuda
