// Copies operands of halves to lines that begin at multiples of 128 bytes, or of 16 if they are
// shorter and along K. A thread copies eight elements of a line, and some threads a part of it; or,
// where what follows each other lies across lines, a warp eight elements of 32. Copies are asked to
// leave L2 last, and what is read first: were they written to memory, that would take as long as to
// read the operand. The next call's often lie where these did, and replace them.

#include <algorithm>

#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/stored_batch.h"
#include "kernels/mma/align_operands.h"
#include "kernels/mma/load_16bit.cuh"
#include "kernels/mma/plan.h"
#include "ptx/cp_async.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kLanes = 8, kParts = 32 / kLanes;                         // of a part, of a warp
constexpr int kPart = kLanes * kEight;                                  // elements
constexpr int64_t kLine = kCacheLineBytes / int64_t{sizeof(uint16_t)};  // of L2, likewise
constexpr int64_t kMostPieces = (int64_t{1} << 31) - 1;  // that a FastDivmod tells apart

struct Job {
  Matrix from;  // row_stride: between lines; col_stride: of their elements
  Batch batch;  // of matrices that are stored
  uint16_t* to;
  int64_t pitch;             // of lines there
  uint32_t lines, length;    // of a matrix
  bool across;               // neighbours lie across lines
  FastDivmod parts, groups;  // of a line, and of lines, that are copied at a time
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
__device__ void gather_piece(const Job& job, uint32_t block) {
  const uint32_t lane = threadIdx.x % 32, warp = block * kWarps + threadIdx.x / 32;
  const Piece piece =
      job.across ? Piece(job, warp, 32, kEight, lane, 0)
                 : Piece(job, warp * kParts + lane / kLanes, 1, kPart, 0, lane % kLanes * kEight);
  ptx::pdl_wait();
  ptx::pdl_launch_dependents();
  if (piece.lines <= 0 || piece.left <= 0) return;
  ptx::st_global_16(piece.to, gather(piece.from, job.from.col_stride, piece.left),
                    ptx::policy_evict_last());
}

// Where a piece lies is found out before the previous kernel has ended.
__global__ void __launch_bounds__(kThreads)
    align_operands_kernel(const __grid_constant__ Jobs jobs) {
  const bool second = blockIdx.x >= jobs.job[0].blocks;
  const Job& job = jobs.job[second];
  const uint32_t block = blockIdx.x - (second ? jobs.job[0].blocks : 0);
  if (job.across || job.from.col_stride != 1) return gather_piece(job, block);
  const Piece piece(job, block * (kThreads / kLanes) + threadIdx.x / kLanes, 1, kPart, 0,
                    threadIdx.x % kLanes * kEight);
  const int shift = shift_of(piece.from);
  const auto* sixteen = reinterpret_cast<const uint4*>(piece.from - shift / 2);
  // Whether both of the 16 bytes are asked for, and memory may end within them.
  const bool both = shift / 2 + piece.left > kEight;
  const bool ends = reinterpret_cast<const uint16_t*>(sixteen + 1 + both) > piece.end;
  asm volatile("" : "+l"(sixteen));  // here, not later
  ptx::pdl_wait();
  ptx::pdl_launch_dependents();  // and set up its barriers
  if (piece.lines <= 0 || piece.left <= 0) return;
  uint4 made;
  if (ends) {
    made = gather(piece.from, 1, piece.left);
  } else {
    const uint4 near = __ldcs(sixteen);
    const uint4 far = both ? __ldcs(sixteen + 1) : make_uint4(0, 0, 0, 0);
    made = shifted(near, far, shift);
  }
  ptx::st_global_16(piece.to, made, ptx::policy_evict_last());
}

}  // namespace

std::optional<Problem> align_operands(const Problem& p, const Context& context, bool only_b) {
  Problem copied = p;
  Matrix* operands[] = {&copied.a, &copied.b};
  const int64_t rows[] = {p.m, p.k}, cols[] = {p.k, p.n};
  Jobs jobs{};
  int64_t bytes = 0, begins[2]{};
  for (int i = only_b ? 1 : 0; i < 2; ++i) {
    const Matrix& from = *operands[i];
    const Matrix outer = i == 0 ? from : transposed(from);  // A's rows, or B's columns
    const int64_t count = i == 0 ? p.m : p.n;
    if (!mma_must_align(p, outer, count)) continue;
    const bool wants_k = mma_transposes_to_k_major(p, outer, count);
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
  int64_t blocks = 0;
  for (Job& job : jobs.job) {
    if (job.lines == 0) continue;
    const int64_t parts = ceil_div(job.length, job.across ? kEight : kPart);
    const int64_t groups = ceil_div(job.lines, job.across ? 32 : 1);
    job.parts = FastDivmod::of(static_cast<uint32_t>(parts));
    job.groups = FastDivmod::of(static_cast<uint32_t>(groups));
    const int64_t by_block = job.across ? kWarps : kWarps * kParts;
    const int64_t own = ceil_div(parts * groups * job.batch.count, by_block);
    job.blocks = static_cast<uint32_t>(own);
    blocks += own;
  }
  if (blocks * kWarps * kParts > kMostPieces) return std::nullopt;
  void* workspace = context.allocate(bytes);
  if (workspace == nullptr) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    if (jobs.job[i].lines == 0) continue;
    void* to = static_cast<uint8_t*>(workspace) + begins[i];
    operands[i]->data = to;
    jobs.job[i].to = static_cast<uint16_t*>(to);
  }
  launch_pdl(align_operands_kernel, static_cast<unsigned>(blocks), kThreads, 0, context, jobs);
  return copied;
}

}  // namespace tiled::cuda
