// 15 mma_shift: products of halves, one operand of which has lines that begin anywhere.
//
// Idea:  the copy engine reads lines that begin at multiples of 16 bytes, and copying others first
//        reads and writes an operand before it is multiplied, which takes longer than the product
//        where the other one is short. But wgmma takes A from registers, too. So threads copy the
//        longer operand's lines as they lie, 16 bytes at multiples of 16, whichever elements those
//        are; and who multiplies reads from there what wgmma wants: along K words, shifted by a
//        half where the operand's begin within memory's; across K halves of two lines. The copy
//        engine brings the other operand, which is copied first if it has to be; of wide tiles for
//        two blocks at a time, each of which asks for half. If the longer one is B, this computes
//        C's transpose.
// Limit: instructions that wait for each other, of who copies and of who multiplies; the longer
//        operand is copied once for each 64 to 256 columns, so for large products copies of both
//        that 13_mma_bulk makes are faster.
// Next:  fewer instructions for a step: it takes a warpgroup that multiplies 64 rows by few columns
//        longer to issue them than tensor cores to multiply.
//
//   producers   wait empty[s]   copy A's lines of a step, ask for B's -> full[s]; two warpgroups,
//               by turns
//   consumers   issue the four products of step s, wait full[s + 1], read A's next registers; then
//               those of s are finished -> empty[s]

#include <cstdint>
#include <optional>
#include <type_traits>

#include "chained.h"
#include "device/copy_async.cuh"
#include "device/pipeline.cuh"
#include "device/registers.cuh"
#include "device/wgmma.cuh"
#include "element.h"
#include "epilogue.h"
#include "kernels/map_place.cuh"
#include "kernels/mma_bulk.cuh"
#include "kernels/mma_kind.h"
#include "kernels/mma_lines.h"
#include "kernels/mma_store.cuh"
#include "launch.h"
#include "mma.h"

namespace tiled::cuda {

void launch_mma_ring(const Problem& p, const Context& context);

namespace {

namespace wgmma = device::wgmma;

constexpr int kSixteen = 16;  // bytes that are copied at once, from multiples of as many
constexpr int kWarpgroup = 128;
// Where in a box a line is, and which row is the `at`th that is multiplied. Along K, of a
// warpgroup's rows those that are shifted by the same are neighbours there, since a warp reads
// those at once.
template <int kRows, bool kAcross>
__device__ int slot(int line) {
  return kAcross ? line : line / kRows * kRows + line % 8 * (kRows / 8) + line % kRows / 8;
}
template <int kRows, bool kAcross>
__device__ int row_at(int at) {
  constexpr int kSame = kRows / 8;
  return kAcross ? at : at / kRows * kRows + at % kSame * 8 + at % kRows / kSame;
}

// A step of a tile's part of A is one box or several: lines of up to 64 halves, of rows or, across
// K, of steps of K, each in 16 bytes more, since it may begin anywhere in the first 16. So wide are
// lines that a warp reads from most banks once.
template <int kRows, bool kAcross>
struct Box {
  static constexpr int kBoxRows = kRows < 64 ? kRows : 64, kBoxes = kRows / kBoxRows;
  static constexpr int kLines = kAcross ? 64 : kBoxRows, kInLine = kAcross ? kBoxRows : 64;
  static constexpr int kInBytes = kInLine * 2, kSixteens = kInBytes / kSixteen;  // without the last
  static constexpr int kPitch = kInBytes + kSixteen, kBytes = kLines * kPitch;
};

template <class T, int kIndex, int kStages, bool kAAcross, bool kBAcross, int kRows>
struct Tile : mma_bulk::TileOf<T, kMmaShiftTiles[kIndex].m, kMmaShiftTiles[kIndex].n,
                               kMmaShiftTiles[kIndex].cluster, kStages, kAAcross, kBAcross, kRows> {
  using ABox = Box<Tile::kM, kAAcross>;
  // Warpgroups that copy, the first and the last: one alone takes longer for a step than it is
  // multiplied, unless there are many columns, whose sums leave no registers for a second.
  static constexpr int kProducers = Tile::kN == 256 ? 1 : 2;
  static constexpr int kThreads = kProducers * kWarpgroup + Tile::kMultipliers;
  static constexpr int kABytes = ABox::kBoxes * ABox::kBytes;
  using Added =
      mma_bulk::TileOf<T, Tile::kM, Tile::kN, Tile::kCluster, kStages, kAAcross, false, kRows>;
};

// Lines of A in memory: the first of a matrix, and from one to the next in elements, rows or,
// across K, steps of K.
template <bool kAcross>
struct Lines {
  const uint16_t* data;
  int64_t pitch;
  const uint16_t* end;  // of the matrix
  __device__ Lines(const Problem& p, int64_t batch)
      : data(static_cast<const uint16_t*>(p.a.data) + batch_offset(p.batch, p.a, batch)),
        pitch(kAcross ? p.a.col_stride : p.a.row_stride),
        end(data + ((kAcross ? p.k : p.m) - 1) * pitch + (kAcross ? p.m : p.k)) {}
  // Bytes from a multiple of 16 to where a line begins, or any that is a multiple of eight lines
  // further, and of eight elements.
  __device__ int shift(int line) const { return address(line) % kSixteen; }
  // Likewise, whether it is an odd one, any multiple of 16 lines further, and of 16 elements.
  __device__ bool is_odd(int line) const { return address(line) / kSixteen % 2 != 0; }

 private:
  __device__ int address(int line) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(data + line * pitch) % (2 * kSixteen));
  }
};

// What a thread of a producing warpgroup copies of a tile's part of A, of which `rows` are in the
// matrix, of K from `begin` on `k`: 16 bytes at a time. Some threads together copy what a box has
// of a line, and another one the first 16 bytes or the last, which are left.
template <class Tile>
class Copies {
  static constexpr bool kAcross = Tile::kAAcross;
  using B = typename Tile::ABox;

 public:
  __device__ Copies(const Lines<kAcross>& lines, int row, int64_t begin, int rows, int k)
      : end_(reinterpret_cast<const uint8_t*>(lines.end)), rows_(rows), k_(k) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    line_ = thread / B::kSixteens, left_box_ = thread / B::kLines, left_line_ = thread % B::kLines;
    const auto* first = reinterpret_cast<const uint8_t*>(
        lines.data + (kAcross ? begin : row) * lines.pitch + (kAcross ? row : begin));
    const int64_t pitch = lines.pitch * 2;
    // Those that are copied together begin at multiples of 32 bytes, as L2 has them.
    own_ = thread % B::kSixteens * kSixteen + (lines.is_odd(line_) ? kSixteen : 0);
    shift_ = lines.shift(line_);
    UNROLL
    for (int i = 0; i < kPointers; ++i) {
      from_[i] = first + (line_ + i * kAtOnce) * pitch - shift_ + own_;
      asm volatile("" : "+l"(from_[i]));  // not to be computed again for each step
    }
    step_ = kAcross ? 64 * pitch : 128;
    left_own_ = lines.is_odd(left_line_) ? 0 : B::kInBytes;
    left_shift_ = lines.shift(left_line_);
    if (left_own_ > 0 && left_shift_ == 0) left_box_ = B::kBoxes;
    left_from_ = first + left_line_ * pitch - left_shift_ + left_own_ +
                 left_box_ * (kAcross ? 128 : 64 * pitch);
  }

  // A step. Zeros for what is beyond the end of K; what is beyond A's rows is never stored.
  __device__ void copy(uint8_t* stage) const {
    const uint32_t to = device::shared_address(stage);
    // Whoever reads beyond the end of a line across K reads what the next one has, if there is one.
    if (k_ > (kAcross ? 64 : 64 + kSixteen / 2)) {
      copy_each<true>(to);
    } else {
      copy_each<false>(to);
    }
  }
  __device__ bool is_left() const { return k_ > 0; }
  // What follows is of the next step.
  __device__ void next() {
    at_ += step_;
    k_ -= 64;
  }

 private:
  static constexpr int kAtOnce = kWarpgroup / B::kSixteens;  // lines
  // So that a thread's lines are shifted by the same.
  static_assert(kAtOnce % 16 == 0 && B::kLines % kAtOnce == 0);
  static_assert(B::kBoxes * B::kLines <= kWarpgroup);
  static constexpr int kOfBox = B::kLines / kAtOnce,
                       kPointers = kAcross ? kOfBox : B::kBoxes * kOfBox;

  // kWhole: there is more of K than the step.
  template <bool kWhole>
  __device__ void copy_each(uint32_t stage) const {
    const uint32_t to = stage + slot<Tile::kRows, kAcross>(line_) * B::kPitch + own_;
    UNROLL
    for (int box = 0; box < B::kBoxes; ++box) {
      UNROLL
      for (int i = 0; i < kOfBox; ++i) {
        const uint8_t* from = kAcross ? from_[i] + box * 128 : from_[box * kOfBox + i];
        const int line = i * kAtOnce;
        copy_sixteen<kWhole>(box, line_ + line, own_ - shift_,
                             to + box * B::kBytes + slot<Tile::kRows, kAcross>(line) * B::kPitch,
                             from + at_);
      }
    }
    if (left_box_ < B::kBoxes) {
      copy_sixteen<kWhole>(left_box_, left_line_, left_own_ - left_shift_,
                           stage + left_box_ * B::kBytes +
                               slot<Tile::kRows, kAcross>(left_line_) * B::kPitch + left_own_,
                           left_from_ + at_);
    }
  }
  // `own`: from where the line begins in its box. Halves are copied one by one, for which a thread
  // waits, where memory may end within their 16 bytes.
  template <bool kWhole>
  __device__ void copy_sixteen(int box, int line, int own, uint32_t to, const uint8_t* from) const {
    const int left = (kAcross ? rows_ - box * 64 : k_) * 2 - own;
    if (kAcross ? left <= 0 : line >= rows_ - box * 64) return;
    const bool inside = kAcross ? line < k_ : left > 0;
    if (kWhole) {
      device::copy_whole_16(to, from);
    } else if (inside && from + kSixteen > end_) {
      device::copy_halves(to, from, min(left, kSixteen) / 2);
    } else {
      device::copy_16(to, from, inside ? min(left, kSixteen) : 0);
    }
  }
  const uint8_t *from_[kPointers], *left_from_;  // of the first step
  const uint8_t* end_;
  int64_t at_ = 0, step_;  // bytes
  int rows_, k_;           // that are left
  int line_, own_, shift_;
  int left_box_, left_line_, left_own_, left_shift_;
};

// Warpgroups have every other stage.
template <class Tile, class End>
__device__ void produce(const typename End::Work& work, mma_bulk::Smem<Tile, End>& smem) {
  const Problem& p = work.p;
  const int warp = device::uniform(threadIdx.x / 32), own = warp < kWarpgroup / 32 ? 0 : 1;
  device::Ring ring{.stages = Tile::kStages, .parity = 1};
  if (!work.a_is_there) device::wait_for_previous_kernel();
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t units = work.tiles * work.ranges;
  for (int64_t index = blockIdx.x / kCluster; index < units; index += gridDim.x / kCluster) {
    const mma_bulk::Unit unit = mma_bulk::locate_unit<Tile>(work, index);
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(min(all - first, int64_t{1} << 16));
    };
    Copies<Tile> a(Lines<Tile::kAAcross>(p, unit.tile.batch), unit.tile.row, unit.begin,
                   left(p.m, unit.tile.row), static_cast<int>(unit.end - unit.begin));
    const mma_bulk::Part<Tile::kN, Tile::kBAcross, Tile::kCluster> b{
        work.b, unit.tile.col, left(p.n, unit.tile.col), End::place(p, p.b, unit.tile.batch),
        mma_bulk::rank<Tile>()};
    auto k = static_cast<int>(unit.begin);
    for (; a.is_left(); k += Tile::kK, ring.next(), a.next()) {
      if (ring.stage % Tile::kProducers != own) continue;
      uint64_t* full = &smem.full[ring.stage];
      device::wait(&smem.empty[ring.stage], ring.parity);
      __syncwarp();
      if (warp % (kWarpgroup / 32) == 0 && device::elect()) {
        device::wait_for_previous_kernel();
        device::arrive_expecting(full, b.bytes(Tile::kK));
        b.copy(smem.b[ring.stage], k, p.k - k <= Tile::kK, full);
      }
      a.copy(smem.a[ring.stage]);
      device::arrive_when_copied(full);
    }
  }
  mma_bulk::wait_for_last<Tile::kProducers, Tile>(smem, ring, own);
}

// Of the rows that a warpgroup multiplies the first of a thread's; the second, if there are 64, is
// the eighth after it.
template <int kRows>
__device__ int own_row(int warp, int lane) {
  return warp * (kRows / 4) + lane / 4;
}

// Where a thread that multiplies finds A's halves in a stage: along K two in words that begin
// within those of memory, across K one by one.
template <class Tile>
class Halves {
  static constexpr bool kAcross = Tile::kAAcross;
  using B = typename Tile::ABox;

 public:
  __device__ Halves(const Lines<kAcross>& lines, int warpgroup, int warp, int lane) {
    const int in_tile = warpgroup * Tile::kRows + own_row<Tile::kRows>(warp, lane);
    const int in_box = in_tile % B::kBoxRows, k = lane % 4 * 2;
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int line = kAcross ? k + i : row_at<Tile::kRows, kAcross>(in_box + i * kEight);
      const int shift = lines.shift(line);
      at_[i] = in_tile / B::kBoxRows * B::kBytes + slot<Tile::kRows, kAcross>(line) * B::kPitch +
               (kAcross ? shift + in_box * 2 : shift / 4 * 4 + k * 2);
      bits_[i] = shift % 4 * 8;
    }
  }

  // As wgmma takes them, of 16 of K each.
  __device__ void read(const uint8_t* stage, uint32_t (&a)[4][4]) const {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        const int k = i * 16 + j / 2 * kEight, second = j % 2;  // of a thread's rows
        if (second * kEight >= Tile::kRows / 4) {
          a[i][j] = 0;
        } else if constexpr (kAcross) {
          const auto half = [&](int next) -> uint32_t {
            const uint8_t* from = stage + at_[next] + second * kEight * 2 + k * B::kPitch;
            return *reinterpret_cast<const uint16_t*>(from);
          };
          a[i][j] = half(0) | half(1) << 16;
        } else {
          const auto* words = reinterpret_cast<const uint32_t*>(stage + at_[second] + k * 2);
          // Where two warpgroups read, reads in vain take time; where one does, to read none.
          const bool reads = Tile::kConsumers == 1 || bits_[second] > 0;
          a[i][j] = __funnelshift_r(words[0], reads ? words[1] : 0, bits_[second]);
        }
      }
    }
  }

 private:
  static constexpr int kEight = 8;

  int at_[2], bits_[2];  // across K of two lines, along K of two rows
};

// As multiply_chunk() of mma_bulk.cuh.
template <class Tile, class End>
__device__ int multiply_chunk(mma_bulk::Smem<Tile, End>& smem, const Halves<Tile>& halves,
                              device::Ring& ring, int length, int lane,
                              float (&sums)[Tile::kElements]) {
  constexpr int kB16 = Tile::kBAcross ? 128 : 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  UNROLL
  for (float& each : sums) each = 0;
  uint32_t a[2][4][4];  // a step's, and the next one's
  const auto read = [&](uint32_t(&to)[4][4]) {
    device::wait(&smem.full[ring.stage], ring.parity);
    halves.read(smem.a[ring.stage], to);
  };
  read(a[0]);
  NO_UNROLL
  for (int k = 0;; k += 2 * Tile::kK) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint64_t b = wgmma::describe_lines<Tile::kBlock>(smem.b[ring.stage]);
      wgmma::keep(sums), wgmma::keep(a[i]);
      wgmma::fence();
      UNROLL
      for (int j = 0; j < 4; ++j) {
        wgmma::multiply_add<kBFloat16, Tile::kBAcross>(sums, a[i][j], b + j * kB16);
      }
      wgmma::commit();
      const int stage = ring.stage;
      ring.next();
      if (k + (i + 1) * Tile::kK >= length) return stage;
      read(a[1 - i]);
      wgmma::wait<0>();
      mma_bulk::release(smem, stage, lane);
    }
  }
}

struct EndWork : mma_bulk::Work {
  bool turned;      // p is, so that biases are those of its rows
  bool simple;      // sums end in a bias and ReLU, if in anything
  bool a_is_there;  // the kernel before copies B, and let this one start when all others had ended
};

template <class Tile>
struct End {
  // Not read by who adds chunks, of which nvcc would warn.
  enum { kHeld = Tile::kN == 256 ? 128 : 144 };
  static constexpr int kAtOnce = 32;  // columns

  using Work = EndWork;
  struct Smem {
    float leaving[Tile::kConsumers][Tile::kRows][kAtOnce + 1];  // a warpgroup's
  };

  const Work& work;
  Smem& smem;

  __device__ static MapPlace place(const Problem& p, const Matrix& matrix, int64_t index) {
    return {p.batch, matrix, index};
  }
  __device__ void begin_tile(const Position&) const {}
  __device__ void end_chunk(const Position&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const Position& tile, float (&sums)[Tile::kElements]) const {
    const Problem& p = work.p;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const auto store_as = [&]<class Out>(Out* c) {
      work.turned ? store<true>(c + c_offset, tile, sums) : store<false>(c + c_offset, tile, sums);
    };
    if (p.out_dtype == DType::kFloat32) {
      store_as(static_cast<float*>(p.c.data));
    } else {
      store_as(static_cast<typename Tile::T*>(p.c.data));
    }
  }
  __device__ void finish() const {}

 private:
  // Stores the warpgroup's rows. Sums move up to the registers that are stored, so that the loop
  // stays one. Threads that follow each other store what does in C: each some of a row or, where p
  // is turned, of a column, for which there is one bias.
  template <bool kTurned, class Out>
  __device__ void store(Out* c, const Position& tile, float (&sums)[Tile::kElements]) const {
    using T = typename Tile::T;
    constexpr int kEach = kAtOnce / 2, kRows = Tile::kRows;  // sums of a thread
    // What a thread stores of those at once, and how far apart.
    constexpr int kStored = kRows * kAtOnce / kWarpgroup,
                  kApart = kWarpgroup / (kTurned ? kRows : 32);
    const Problem& p = work.p;
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    auto& leaving = smem.leaving[warpgroup];
    const int64_t row = tile.row + warpgroup * kRows;
    const int64_t end = min(int64_t{tile.col} + Tile::kN, p.n);
    const auto rows = static_cast<int>(min(p.m - row, int64_t{kRows}));
    const int down = kTurned ? thread % kRows : thread / 32;
    const int right = kTurned ? thread / kRows : lane;
    const float* from = &leaving[down][right];
    constexpr int kNext = kTurned ? kApart : kApart * (kAtOnce + 1);
    const int64_t stride = kApart * (kTurned ? p.c.col_stride : p.c.row_stride);
    const bool has_bias = p.epilogue.bias != nullptr;
    const bool relu = p.epilogue.activation == Activation::kRelu;
    NO_UNROLL
    for (int64_t col = tile.col; col < end; col += kAtOnce) {
      UNROLL
      for (int i = 0; i < kEach; ++i) {
        const int below = i / 2 % 2 * 8;
        if (below >= kRows / 4) continue;
        const int at = own_row<kRows>(thread / 32, lane) + below;
        leaving[row_at<kRows, Tile::kAAcross>(at)][i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
      }
      device::sync_threads(1 + warpgroup, kWarpgroup);
      const auto cols = static_cast<int>(min(end - col, int64_t{kAtOnce}));
      const bool inside = down < rows && right < cols;
      const int left = !inside ? 0 : kTurned ? cols - right : rows - down;
      Out* to = c + (row + down) * p.c.row_stride + (col + right) * p.c.col_stride;
      float bias = 0;
      if (inside && has_bias) {
        const int64_t at = kTurned ? row + down : col + right;
        bias = widen(static_cast<const T*>(p.epilogue.bias)[at * p.epilogue.bias_stride]);
      }
      if (work.simple) {
        UNROLL
        for (int i = 0; i < kStored; ++i, to += stride) {
          float x = from[i * kNext];
          if (has_bias) x += bias;
          if (relu) x = activate(Activation::kRelu, x);
          if (i * kApart < left) *to = narrow<Out>(x);
        }
      } else {
        end_each<false, 2>(p.epilogue, from, kNext, bias, to, stride, ceil_div(left, kApart));
      }
      device::sync_threads(1 + warpgroup, kWarpgroup);
      UNROLL
      for (int i = 0; i + kEach < Tile::kElements; ++i) sums[i] = sums[i + kEach];
    }
  }
};

// Of a thread that multiplies, and of one that copies, so that there is room for all.
template <class Tile>
constexpr int kRegisters = Tile::kConsumers == 1   ? 232
                           : Tile::kProducers == 1 ? 208
                           : Tile::kN == 64        ? 168
                                                   : 184;
template <class Tile>
constexpr int kCopying = Tile::kConsumers * Tile::kProducers < 4 ? 88 : 256 - kRegisters<Tile>;
// A block has as many as its threads begin with: who takes more waits for ever.
template <class Tile>
constexpr bool kHasRegisters =
    Tile::kConsumers * kRegisters<Tile> + Tile::kProducers * kCopying<Tile> <=
    65536 / Tile::kThreads / 8 * 8 * (Tile::kThreads / kWarpgroup);

template <class Tile, class End>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_shift_kernel(const __grid_constant__ typename End::Work work) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<mma_bulk::Smem<Tile, End>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    device::init_stages(Tile::kStages, smem.full, kWarpgroup + 1, smem.empty,
                        Tile::kMultipliers / 32 * Tile::kCluster);
    device::publish_barriers();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    device::say_started();
    device::wait_for_cluster();
  }
  device::let_next_kernel_start();
  const int warpgroup = device::uniform(threadIdx.x / kWarpgroup);
  if (warpgroup > 0 && warpgroup <= Tile::kConsumers) {
    device::take_registers<kRegisters<Tile>>();
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const auto multiply = [&](const mma_bulk::Unit& unit, device::Ring& ring, int length,
                              int consumer, int lane, float(&sums)[Tile::kElements]) {
      const Lines<Tile::kAAcross> lines(work.p, unit.tile.batch);
      const Halves<Tile> halves(lines, consumer, warp, lane);
      return multiply_chunk<Tile, End>(smem, halves, ring, length, lane, sums);
    };
    mma_bulk::consume<Tile, End>(work, smem, multiply);
  } else {
    device::give_registers<kCopying<Tile>>();
    produce<Tile, End>(work, smem);
  }
}

template <class Tile>
bool run_tile(EndWork work, int64_t ranges, const Context& context) {
  static_assert(kHasRegisters<Tile>);
  const Problem& p = work.p;
  work.b = mma_bulk::maps_of_b<Tile>({p.batch, transposed(p.b)}, p, Tile::kK);
  return mma_bulk::launch_units<Tile, End>(mma_shift_kernel<Tile, End<Tile>>, work, ranges,
                                           context);
}

}  // namespace

// Where there is no memory for copies, or for totals, mma_ring needs none and gives the same bits.
void launch_mma_shift(const Problem& p, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return;
  EndWork work{};
  work.turned = mma_shift_turns(p);
  work.simple = p.epilogue.is_simple();
  const Problem as_it_lies = work.turned ? turned(p) : p;
  constexpr bool kOnlyB = true;
  const std::optional<Problem> lines = in_lines_of_halves(as_it_lies, context, kOnlyB);
  if (!lines) return launch_mma_ring(p, context);
  work.p = *lines;
  work.a_is_there = lines->b.data != as_it_lies.b.data;
  const Plan plan = mma_shift_plan(p, context.processors);
  const auto run = [&]<class Tile>() {
    if (!run_tile<Tile>(work, plan.ranges, context)) launch_mma_ring(p, context);
  };
  with_mma_kind(*lines, [&]<class T, bool kAAcross, bool kBAcross>() {
    switch (plan.tile) {
      case 0: return run.template operator()<Tile<T, 0, 8, kAAcross, kBAcross, 64>>();
      case 1: return run.template operator()<Tile<T, 1, 8, kAAcross, kBAcross, 64>>();
      case 2: return run.template operator()<Tile<T, 2, 12, kAAcross, kBAcross, 64>>();
      case 3: return run.template operator()<Tile<T, 3, 16, kAAcross, kBAcross, 32>>();
      case 4: return run.template operator()<Tile<T, 4, 10, kAAcross, kBAcross, 32>>();
      case 5: return run.template operator()<Tile<T, 5, 6, kAAcross, kBAcross, 64>>();
      case 6: return run.template operator()<Tile<T, 6, 6, kAAcross, kBAcross, 64>>();
      case 7: return run.template operator()<Tile<T, 7, 4, kAAcross, kBAcross, 64>>();
    }
  });
}

}  // namespace tiled::cuda
