// align_operands_kernel: copies 16-bit operands to rows that TMA can load.
//
// Idea:  a thread loads the two aligned 16-byte words that hold eight elements of a row, shifts the
//        eight out of them, and stores 16 bytes. Elements without unit stride are gathered one by
//        one; if the copy transposes, a warp does so for eight elements of 32 rows. The copy's
//        rows begin with a cache line, so that a box takes one request for each; short K-major rows
//        begin at multiples of 16 bytes. PDL: addresses are computed while the last kernel ends.
// Limit: the operand is read once more, and its copy is written. Loads are evict-first and stores
//        evict-last: a copy that fits in L2 need not reach DRAM, and the next call's copy, which
//        often has the same address, replaces it.
// Next:  mma_unaligned, which reads the longer operand without a copy.

#include <algorithm>

#include "core/stored_batch.h"
#include "kernels/common/fast_divmod.cuh"
#include "kernels/common/launch.h"
#include "kernels/mma/align_operands.h"
#include "kernels/mma/load_16bit.cuh"
#include "kernels/mma/plan.h"
#include "ptx/cp_async.cuh"
#include "ptx/pdl.cuh"

namespace tiled::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kLanes = 8, kLaneGroups = 32 / kLanes;   // lanes that copy a segment of one row
constexpr int kSegment = kLanes * kX8;                 // elements
constexpr int64_t kMaxIndex = (int64_t{1} << 31) - 1;  // of a segment, which FastDivmod divides

// How an operand is copied. `rows` are the copy's, which the source may have as columns.
struct OperandCopy {
  Matrix from;  // row_stride is the distance between rows, col_stride the one of a row's elements
  Batch batch;  // without broadcast dimensions
  uint16_t* to;
  int64_t pitch;                    // of the copy's rows, in elements
  uint32_t rows, length;            // of a matrix
  bool transposes;                  // elements of a column are adjacent in the source
  FastDivmod segments, row_groups;  // of a row; of a matrix
  uint32_t blocks;
};

struct OperandCopies {
  OperandCopy operand[2];
};

// The copy of one thread: up to eight elements, from (row, element) of segment `index` on. Segments
// are `rows_each` by `elements_each` and are numbered along a row first.
struct ThreadCopy {
  const uint16_t *from, *end;  // of the matrix
  uint16_t* to;
  int rows, left;  // of the matrix and of the row, from there on
  __device__ ThreadCopy(const OperandCopy& copy, uint32_t index, uint32_t rows_each,
                        uint32_t elements_each, uint32_t row, uint32_t element) {
    const uint32_t rest = copy.segments.divide(index), matrix = copy.row_groups.divide(rest);
    row += (rest - matrix * copy.row_groups.by) * rows_each;
    element += (index - rest * copy.segments.by) * elements_each;
    rows = matrix < copy.batch.count ? static_cast<int>(copy.rows - row) : 0;
    left = min(static_cast<int>(copy.length - element), kX8);
    const auto* data =
        static_cast<const uint16_t*>(copy.from.data) + batch_offset(copy.batch, copy.from, matrix);
    from = data + row * copy.from.row_stride + element * copy.from.col_stride;
    end = data + (copy.rows - 1) * copy.from.row_stride + copy.length;
    to = copy.to + (matrix * int64_t{copy.rows} + row) * copy.pitch + element;
  }
};

// Copies elements that are not adjacent along the copy's rows.
__device__ void gather_rows(const OperandCopy& copy, uint32_t block) {
  const uint32_t lane = threadIdx.x % 32, warp = block * kWarps + threadIdx.x / 32;
  const ThreadCopy own = copy.transposes ? ThreadCopy(copy, warp, 32, kX8, lane, 0)
                                         : ThreadCopy(copy, warp * kLaneGroups + lane / kLanes, 1,
                                                      kSegment, 0, lane % kLanes * kX8);
  ptx::pdl_wait();
  ptx::pdl_launch_dependents();
  if (own.rows <= 0 || own.left <= 0) return;
  ptx::st_global_16(own.to, gather_x8(own.from, copy.from.col_stride, own.left),
                    ptx::policy_evict_last());
}

__global__ void __launch_bounds__(kThreads)
    align_operands_kernel(const __grid_constant__ OperandCopies copies) {
  const bool second = blockIdx.x >= copies.operand[0].blocks;
  const OperandCopy& copy = copies.operand[second];
  const uint32_t block = blockIdx.x - (second ? copies.operand[0].blocks : 0);
  if (copy.transposes || copy.from.col_stride != 1) return gather_rows(copy, block);
  const ThreadCopy own(copy, block * (kThreads / kLanes) + threadIdx.x / kLanes, 1, kSegment, 0,
                       threadIdx.x % kLanes * kX8);
  const int shift = misalignment_16(own.from);
  const auto* words = reinterpret_cast<const uint4*>(own.from - shift / 2);
  const bool needs_high = shift / 2 + own.left > kX8;
  const bool passes_end = reinterpret_cast<const uint16_t*>(words + 1 + needs_high) > own.end;
  asm volatile("" : "+l"(words));  // keeps the address's computation before the wait
  ptx::pdl_wait();
  ptx::pdl_launch_dependents();  // the next kernel sets up its barriers meanwhile
  if (own.rows <= 0 || own.left <= 0) return;
  uint4 x8;
  if (passes_end) {
    x8 = gather_x8(own.from, 1, own.left);
  } else {
    const uint4 low = __ldcs(words);
    const uint4 high = needs_high ? __ldcs(words + 1) : make_uint4(0, 0, 0, 0);
    x8 = funnel_shift_x8(low, high, shift);
  }
  ptx::st_global_16(own.to, x8, ptx::policy_evict_last());
}

}  // namespace

std::optional<Problem> align_operands(const Problem& p, const Context& context, bool only_b) {
  Problem aligned = p;
  Matrix* operands[] = {&aligned.a, &aligned.b};
  const int64_t rows[] = {p.m, p.k}, cols[] = {p.k, p.n};
  OperandCopies copies{};
  int64_t bytes = 0, offsets[2]{};
  for (int i = only_b ? 1 : 0; i < 2; ++i) {
    const Matrix& from = *operands[i];
    const Matrix mn_by_k = i == 0 ? from : transposed(from);
    const int64_t mn = i == 0 ? p.m : p.n;
    if (!mma_must_align(p, mn_by_k, mn)) continue;
    OperandCopy& copy = copies.operand[i];
    // A matrix of one row is contiguous along it, whatever its strides.
    const bool from_row_major =
        rows[i] == 1 || (cols[i] != 1 && from.col_stride <= from.row_stride);
    const Matrix loaded = mma_loaded_layout(p, mn_by_k, mn, i == 1);
    const bool to_row_major = is_mn_major(loaded) == (i == 1);
    const int64_t stored_rows = to_row_major ? rows[i] : cols[i];
    const int64_t length = to_row_major ? cols[i] : rows[i];
    copy.rows = static_cast<uint32_t>(stored_rows), copy.length = static_cast<uint32_t>(length);
    copy.transposes = to_row_major != from_row_major;
    copy.pitch = std::max(loaded.row_stride, loaded.col_stride);
    Matrix to{.data = nullptr,
              .row_stride = to_row_major ? copy.pitch : 1,
              .col_stride = to_row_major ? 1 : copy.pitch};
    const StoredBatch stored = stored_batch(p.batch, from, stored_rows * copy.pitch, to);
    copy.batch = stored.batch;
    copy.from = to_row_major ? stored.from : transposed(stored.from);
    offsets[i] = bytes;
    bytes += mma_copy_bytes(p, mn_by_k, mn, i == 1);
    *operands[i] = to;
  }
  if (bytes == 0) return aligned;
  int64_t blocks = 0;
  for (OperandCopy& copy : copies.operand) {
    if (copy.rows == 0) continue;
    const int64_t segments = ceil_div(copy.length, copy.transposes ? kX8 : kSegment);
    const int64_t row_groups = ceil_div(copy.rows, copy.transposes ? 32 : 1);
    copy.segments = FastDivmod::of(static_cast<uint32_t>(segments));
    copy.row_groups = FastDivmod::of(static_cast<uint32_t>(row_groups));
    const int64_t by_block = copy.transposes ? kWarps : kWarps * kLaneGroups;
    const int64_t own = ceil_div(segments * row_groups * copy.batch.count, by_block);
    copy.blocks = static_cast<uint32_t>(own);
    blocks += own;
  }
  if (blocks * kWarps * kLaneGroups > kMaxIndex) return std::nullopt;
  void* workspace = context.allocate(bytes);
  if (workspace == nullptr) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    if (copies.operand[i].rows == 0) continue;
    void* to = static_cast<uint8_t*>(workspace) + offsets[i];
    operands[i]->data = to;
    copies.operand[i].to = static_cast<uint16_t*>(to);
  }
  launch_pdl(align_operands_kernel, static_cast<unsigned>(blocks), kThreads, 0, context, copies);
  return aligned;
}

}  // namespace tiled::cuda
