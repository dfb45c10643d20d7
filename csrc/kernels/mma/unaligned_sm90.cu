// 15 mma_unaligned: products of halves, one operand of which has lines that begin anywhere.
//
// Idea:  the copy engine reads lines that begin at multiples of 16 bytes, and copying others first
//        reads and writes an operand before it is multiplied, which takes longer than the product
//        where the other one is short. But wgmma takes A from registers, too. So threads copy the
//        longer operand's lines as they lie, 16 bytes at multiples of 16, whichever elements those
//        are; and who multiplies reads from there what wgmma wants: along K words, shifted by a
//        half where the operand's begin within memory's; across K halves of two lines. Along K
//        what is copied at once are lines of L2, so that each comes in one request; a step begins
//        anywhere in one. Across K lines lie as far within 128 bytes as in memory, where stages
//        have room for that, so that each comes in two. The copy engine brings the other operand,
//        which is copied first if it has to be; of wide tiles for two blocks at a time, each of
//        which asks for half. If the longer one is B, this computes C's transpose.
// Limit: requests to L2, two for each step across K; for a block alone some 430 clocks a step,
//        which no part of it bounds alone; the longer operand is copied once for each 64 to 256
//        columns, so for large products copies of both that 13_mma_bulk makes are faster.
// Next:  the shorter operand's copy, for which this waits, and which several ways did not save:
//        docs/notes.md.
//
//   producers   wait empty[s]   copy A's lines of a stage, ask for B's -> full[s]; two warpgroups,
//               by turns
//   consumers   issue the four products of a step, wait full[] of the next one's stage, along K of
//               its second, and read A's next registers; then those products are finished ->
//               empty[] of their stage, along K of their first

#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>

#include "core/element.h"
#include "core/epilogue.h"
#include "core/order_mma.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/mma/align_operands.h"
#include "kernels/mma/host_launch.h"
#include "kernels/mma/instance.h"
#include "kernels/mma/mainloop.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/store_strided.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda {

namespace {

namespace wgmma = ptx::wgmma;

constexpr int kSixteen = 16;  // bytes that are copied at once, from multiples of as many
constexpr int kWarpgroup = 128;
constexpr int kLine = static_cast<int>(kCacheLineBytes);

// A stage of a tile's part of A across K has a line of halves for each step of K. It lies there as
// far beyond a multiple of kUnit bytes as in memory. Where that is a line of L2's, what is copied
// at once from one goes to one, or else, mostly, to two, which are two requests.
template <int kRows, int kUnit_>
struct Slots {
  static constexpr int kUnit = kUnit_;
  static constexpr int kLines = 64, kPitch = kRows * 2 + kUnit, kBytes = kLines * kPitch;
  // What is copied at a time: so many rows, and of a line so many pieces of 16 bytes, since it may
  // begin anywhere in the first.
  static constexpr int kBoxRows = kRows < 64 ? kRows : 64, kBoxes = kRows / kBoxRows;
  static constexpr int kSixteens = kBoxRows * 2 / kSixteen + 1;
};

// Whether a tile's slots keep that of whole lines. The largest would have three stages then; those
// of 32 rows win nothing by it.
template <class Tile>
constexpr bool kWholeLines = Tile::kM * Tile::kN <= 128 * 128 && Tile::kM > 32;

// Along K a stage has a line of L2 of each row. A step begins anywhere in one and ends in the next,
// which the next step begins in. Stages of a row lie beside each other. There are so many of them
// where A lies along K, and across.
template <class T, int kIndex, int kAlong, int kAcross, bool kAMnMajor, bool kBMnMajor, int kRows>
struct Tile
    : mma_tma::TileOf<T, h200::kMmaUnalignedTiles[kIndex].m, h200::kMmaUnalignedTiles[kIndex].n,
                      h200::kMmaUnalignedTiles[kIndex].cluster, kAMnMajor ? kAcross : kAlong,
                      kAMnMajor, kBMnMajor, kRows> {
  using ASlots = Slots<Tile::kM, kWholeLines<Tile> ? kLine : kSixteen>;
  // Warpgroups that copy, the first and the last: one alone takes longer for a step than it is
  // multiplied, unless there are so many sums that no registers are left for a second.
  static constexpr int kProducers = Tile::kM * Tile::kN > 128 * 128 ? 1 : 2;
  static constexpr int kThreads = kProducers * kWarpgroup + Tile::kConsumerThreads;
  static constexpr int kRing = Tile::kStages * kLine;  // bytes of a row's stages
  static constexpr int kABytes =
      kAMnMajor ? ASlots::kBytes : Tile::kM * (kLine + ceil_div(kSixteen, Tile::kStages));
  using ReduceTile = mma_tma::TileOf<T, Tile::kM, Tile::kN, Tile::kCluster, Tile::kStages,
                                     kAMnMajor, false, kRows>;
};

// Bytes from a multiple of kUnit on, and that multiple.
template <int kUnit>
__device__ int beyond(const uint8_t* from) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(from) % kUnit);
}
template <int kUnit>
__device__ const uint8_t* down_to(const uint8_t* from) {
  return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(from) &
                                          ~uintptr_t{kUnit - 1});
}

// Lines of A in memory: the first of a tile, from K's `begin` on, and from one to the next in
// bytes, rows or, across K, steps of K.
template <bool kAcross>
struct Lines {
  const uint8_t* data;
  int64_t pitch;
  const uint8_t* end;  // of the matrix
  __device__ Lines(const Problem& p, const TileCoord& tile, int64_t begin)
      : pitch((kAcross ? p.a.col_stride : p.a.row_stride) * 2) {
    const auto* matrix = reinterpret_cast<const uint8_t*>(static_cast<const uint16_t*>(p.a.data) +
                                                          batch_offset(p.batch, p.a, tile.batch));
    data = matrix + (kAcross ? begin : tile.row) * pitch + (kAcross ? tile.row : begin) * 2;
    end = matrix + ((kAcross ? p.k : p.m) - 1) * pitch + (kAcross ? p.m : p.k) * 2;
  }
};

// Where lines of A lie in stages, and which of its rows a warp reads at once, so that they are in
// different banks. Along K eight rows whose lines begin equally far within 16 bytes, but in
// different ones of a line of L2. Across K eight of four lines, each two after the one before,
// which begins 32 bytes after that, so that the eight may follow each other; or, in whole lines, an
// odd multiple of 2^log words, so that the eight rows' words are those in between, and a thread's
// two rows are in one. Whole lines that would begin in the same words begin 32 bytes apart, too.
template <class Tile>
struct Rows {
  static constexpr bool kInWords = Tile::kAMnMajor && kWholeLines<Tile>;
  int log = 0;         // of how far apart rows are along K, and lines' words across
  int between = 0;     // bytes, the stages of two rows
  bool apart = false;  // lines across K are

  __device__ explicit Rows(const Problem& p) {
    if (kInWords) {
      log = min(__ffsll(p.a.col_stride) - 1, 3);
      apart = p.a.col_stride % 16 == 0;
    } else if (!Tile::kAMnMajor) {
      const auto bytes = static_cast<int>(p.a.row_stride * 2 % 32);
      log = min(5 - __ffs(bytes % 16 | 16), Tile::kM == 32 ? 2 : 3);
      if (bytes == 0) between = kSixteen;
    }
  }
  // Where in its slot what `from` points to lies of a line across K, its first row's half.
  __device__ int in_slot(const uint8_t* from, int line) const {
    return apart ? beyond<kSixteen>(from) + line / 2 % 4 * 32 : beyond<Tile::ASlots::kUnit>(from);
  }
  // The `i`th that is multiplied.
  __device__ int row(int i) const {
    const int group = i / 8;
    if (kInWords) {  // of 64 each
      const int warp = i / 16 % 4, lane = i % 8, below = lane & ((1 << log) - 1);
      return i / 64 * 64 + group % 2 + (below << 1) + (warp << (1 + log)) +
             (lane >> log << (3 + log));
    }
    return (group >> log << (log + 3)) + (group & ((1 << log) - 1)) + (i % 8 << log);
  }
};

// What a thread of a producing warpgroup copies of a tile's part of A, of which `rows` are in the
// matrix, of `k` of K: 16 bytes at a time.
template <class Tile>
class Copies {
  static constexpr bool kAcross = Tile::kAMnMajor;
  using S = typename Tile::ASlots;

 public:
  __device__ Copies(const Lines<kAcross>& lines, const Rows<Tile>& to, int rows, int k)
      : end_(lines.end), pitch_(lines.pitch), to_(to), rows_(rows), k_(k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    copies_ = lane < kByWarp * kSixteens;
    line_ = warp * kByWarp + lane / kSixteens, own_ = lane % kSixteens * kSixteen;
    from_ = lines.data + line_ * pitch_;
  }
  __device__ static int stages(int k) { return ceil_div(k, 64) + (kAcross ? 0 : 1); }
  // The `i`th. Zeros for what is beyond the end of K; what is beyond A's rows is never stored.
  __device__ void copy(uint8_t (*stages)[Tile::kABytes], int stage, int i) const {
    const int left = k_ - i * 64;
    // What follows a line across K are the next ones, if there are some, at least 32 bytes of them.
    if (kAcross ? (left - 64) * pitch_ >= 2 * kSixteen : left >= 64) {
      copy_each<true>(stages, stage, i, left);
    } else {
      copy_each<false>(stages, stage, i, left);
    }
  }

 private:
  static constexpr int kSixteens = kAcross ? S::kSixteens : kLine / kSixteen;  // of a line
  // Lines.
  static constexpr int kByWarp = 32 / kSixteens, kAtOnce = kWarpgroup / 32 * kByWarp;

  // kWhole: all of it is in the matrix.
  template <bool kWhole>
  __device__ void copy_each(uint8_t (*stages)[Tile::kABytes], int stage, int i, int left) const {
    constexpr int kTogether = kWhole ? 32 : 2;
    const int64_t next = kAtOnce * pitch_;
    if constexpr (kAcross) {
      const uint32_t to = ptx::shared_address(stages[stage]) + line_ * S::kPitch;
      UNROLL
      for (int box = 0; box < S::kBoxes; ++box) {
        const int bytes = (rows_ - box * 64) * 2;  // of lines, that are in the matrix
        if (!copies_ || own_ - kSixteen + 2 >= bytes) break;
        if (box + 1 < S::kBoxes && own_ == 128 && bytes > 128) continue;  // the next one's first
        const int further = box * 128 + own_;
        const uint8_t* from = from_ + i * 64 * pitch_;
        _Pragma("unroll kTogether") for (int line = 0; line < 64; line += kAtOnce) {
          if (line + line_ < 64) {
            const uint8_t* sixteen = down_to<kSixteen>(from);
            const int at = line * S::kPitch + to_.in_slot(sixteen, line + line_) + further;
            copy_sixteen<kWhole>(to + at, sixteen + further, line + line_ < left,
                                 bytes - own_ + beyond<kSixteen>(from));
          }
          from += next;
        }
      }
    } else {
      const int to_pitch = Tile::kRing + to_.between;
      uint32_t to = ptx::shared_address(stages[0]) + line_ * to_pitch + stage * kLine + own_;
      const uint8_t* from = from_ + int64_t{i} * kLine;
      _Pragma("unroll kTogether") for (int line = 0; line < Tile::kM; line += kAtOnce) {
        if (line + line_ < rows_) {
          copy_sixteen<kWhole>(to, down_to<kLine>(from) + own_, true,
                               left * 2 - own_ + beyond<kLine>(from));
        }
        from += next, to += kAtOnce * to_pitch;
      }
    }
  }
  // Of which so many bytes are `inside` the line. Halves are copied one by one, for which a thread
  // waits, where memory may end within their 16 bytes.
  template <bool kWhole>
  __device__ void copy_sixteen(uint32_t to, const uint8_t* from, bool is_line, int inside) const {
    if (kWhole) return ptx::cp_async_16(to, from);
    inside = is_line ? max(min(inside, kSixteen), 0) : 0;
    if (inside > 0 && from + kSixteen > end_) {
      ptx::copy_x8_16bit_zfill(to, from, inside / 2);
    } else {
      ptx::cp_async_16_zfill(to, from, inside);
    }
  }
  const uint8_t *from_, *end_;
  int64_t pitch_;
  Rows<Tile> to_;
  int rows_, k_;
  int line_, own_;  // of the first lines the thread's, and where its 16 bytes are in one
  bool copies_;     // any
};

// Warpgroups have every other stage.
template <class Tile, class Epilogue>
__device__ void produce(const typename Epilogue::Params& work,
                        mma_tma::Smem<Tile, Epilogue>& smem) {
  const Problem& p = work.p;
  constexpr int kWarps = kWarpgroup / 32;
  const int warp = ptx::warp_uniform(threadIdx.x / 32), own = warp < kWarps ? 0 : 1;
  ptx::PipelineState ring{.stages = Tile::kStages, .parity = 1};
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) ring.advance();
  };
  skip(own);
  bool waited = !work.a_is_there;
  if (waited) ptx::pdl_wait();
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t work_tiles = work.tiles * work.k_splits;
  int stage = own;  // of the unit's
  for (int64_t index = blockIdx.x / kCluster; index < work_tiles; index += gridDim.x / kCluster) {
    const mma_tma::WorkTile work_tile = mma_tma::locate_work_tile<Tile>(work, index);
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(min(all - first, int64_t{1} << 16));
    };
    const auto k = static_cast<int>(work_tile.k_end - work_tile.k_begin);
    const Copies<Tile> a(Lines<Tile::kAMnMajor>(p, work_tile.tile, work_tile.k_begin),
                         Rows<Tile>(p), left(p.m, work_tile.tile.row), k);
    const mma_tma::OperandTile<Tile::kN, Tile::kBMnMajor, Tile::kCluster> b{
        work.b, work_tile.tile.col, left(p.n, work_tile.tile.col),
        Epilogue::batch_coords(p, p.b, work_tile.tile.batch), mma_tma::rank<Tile>()};
    const int count = Copies<Tile>::stages(k);
    for (; stage < count; stage += Tile::kProducers, skip(Tile::kProducers)) {
      uint64_t* full = &smem.full[ring.stage];
      ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity);
      __syncwarp();
      // By turns, so that no warp has more to do than others.
      if (warp % kWarps == ring.stage / Tile::kProducers % kWarps && ptx::elect_one()) {
        const int step = Tile::kAMnMajor ? stage : stage - 1;
        if (step < 0) {
          ptx::mbarrier_arrive(full);
        } else {
          if (!waited) ptx::pdl_wait();
          waited = true;
          ptx::arrive_expect_tx(full, b.bytes(Tile::kK));
          const int64_t at = work_tile.k_begin + step * Tile::kK;
          b.load(smem.b[ring.stage], static_cast<int>(at), p.k - at <= Tile::kK, full);
        }
      }
      a.copy(smem.a, ring.stage, stage);
      ptx::cp_async_mbarrier_arrive_noinc(full);
    }
    stage -= count;
  }
  if (stage == 0) mma_tma::drain<1, Tile>(smem, ring, 0);
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
  static constexpr bool kAcross = Tile::kAMnMajor;
  static constexpr int kEight = 8, kEights = Tile::kK / kEight;
  using S = typename Tile::ASlots;

 public:
  // `first`: of the thread's rows in the tile, as they are multiplied.
  __device__ Halves(const Lines<kAcross>& lines, const Rows<Tile>& rows, int first, int lane) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int line = kAcross ? lane % 4 * 2 + i : rows.row(first + i * kEight);
      const uint8_t* from = lines.data + line * lines.pitch;
      if (kAcross) {
        UNROLL
        for (int j = 0; j < kEights; ++j, from += kEight * lines.pitch) {
          const int in_slot = rows.in_slot(from, line) + rows.row(first) * 2;
          halves_[j][i] = (line + j * kEight) * S::kPitch + in_slot;
        }
      } else {
        word_[i] = beyond<kLine>(from) / 4 + lane % 4;
        at_[i] = line * (Tile::kRing + rows.between) + word_[i] * 4;
        bits_[i] = beyond<4>(from) * 8;
      }
    }
  }

  // As wgmma takes them, of 16 of K each; along K from two stages.
  __device__ void read(const uint8_t (*stages)[Tile::kABytes], int stage,
                       uint32_t (&a)[4][4]) const {
    if constexpr (kAcross) {
      read_each(a, [&](int second, int k) {
        const auto half = [&](int next) -> uint32_t {
          constexpr int kSecond = Rows<Tile>::kInWords ? 2 : kEight * 2;
          const uint8_t* from = stages[stage] + halves_[k / kEight][next] + second * kSecond;
          return *reinterpret_cast<const uint16_t*>(from);
        };
        return half(0) | half(1) << 16;
      });
    } else {
      const uint8_t* first = stages[0] + stage * kLine;
      stage == Tile::kStages - 1 ? read_words<true>(first, a) : read_words<false>(first, a);
    }
  }

 private:
  // kWraps: from the last stage and the first.
  template <bool kWraps>
  __device__ void read_words(const uint8_t* stage, uint32_t (&a)[4][4]) const {
    int first[2] = {word_[0], word_[1]};
    // So that what wraps is not found out ahead of the loop, and kept.
    if (kWraps) asm volatile("" : "+r"(first[0]), "+r"(first[1]));
    read_each(a, [&](int second, int k) {
      const auto word = [&](int next) {
        const int further = k / 2 + next;
        const bool wraps = kWraps && first[second] + further >= kLine / 4;
        return *reinterpret_cast<const uint32_t*>(stage + at_[second] + further * 4 -
                                                  (wraps ? Tile::kRing : 0));
      };
      return __funnelshift_r(word(0), word(1), bits_[second]);
    });
  }
  // two(second, k): of a thread's first or second row.
  template <class Two>
  __device__ void read_each(uint32_t (&a)[4][4], const Two& two) const {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        const int second = j % 2;
        a[i][j] = second * kEight < Tile::kRows / 4 ? two(second, i * 16 + j / 2 * kEight) : 0;
      }
    }
  }

  int halves_[kEights][2];         // across K, of the first row: of two lines of each eight
  int at_[2], word_[2], bits_[2];  // along K, of two rows
};

// As multiply_chunk() of mma_tma.cuh.
template <class Tile, class Epilogue>
__device__ int multiply_chunk(mma_tma::Smem<Tile, Epilogue>& smem, const Halves<Tile>& halves,
                              bool ends, ptx::PipelineState& ring, int length, int lane,
                              float (&sums)[Tile::kElements]) {
  constexpr bool kAcross = Tile::kAMnMajor;
  constexpr int kB16 = Tile::kBMnMajor ? 128 : 2;
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const uint64_t first_b = wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.b[0]);
  UNROLL
  for (float& each : sums) each = 0;
  uint32_t a[2][4][4];  // a step's, and the next one's
  int b_stage = 0, read_stage = 0;
  const auto read = [&](uint32_t(&to)[4][4]) {
    read_stage = ring.stage;
    if (!kAcross) ring.advance();
    b_stage = ring.stage;
    ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
    halves.read(smem.a, read_stage, to);
    if (kAcross) ring.advance();
  };
  if (!kAcross) ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
  read(a[0]);
  NO_UNROLL
  for (int k = 0;; k += 2 * Tile::kK) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint64_t b = first_b + b_stage * (sizeof(smem.b[0]) / 16);
      wgmma::fence_operand(sums), wgmma::fence_operand(a[i]);
      wgmma::fence();
      UNROLL
      for (int j = 0; j < 4; ++j) {
        wgmma::mma<kBFloat16, Tile::kBMnMajor>(sums, a[i][j], b + j * kB16);
      }
      wgmma::commit_group();
      int stage = read_stage;
      if (k + (i + 1) * Tile::kK >= length) {
        if (kAcross || !ends) return stage;
        wgmma::wait_group<0>();
        mma_tma::release(smem, stage, lane);
        stage = ring.stage;
        ring.advance();
        return stage;
      }
      read(a[1 - i]);
      wgmma::wait_group<0>();
      mma_tma::release(smem, stage, lane);
    }
  }
}

struct EndWork : mma_tma::MainloopParams {
  bool swap_ab;     // p is, so that biases are those of its rows
  bool simple;      // sums end in a bias and ReLU, if in anything
  bool a_is_there;  // the kernel before copies B, and let this one start when all others had ended
};

template <class Tile>
struct Epilogue {
  // What leaves registers for A's halves. Not read by who adds chunks, of which nvcc would warn.
  enum {
    kAccRegisters = Tile::kN == 256                    ? 128
                    : Tile::kM * Tile::kN == 128 * 128 ? 80
                                                       : 112,
    kSharedTotal = 0
  };
  static constexpr int kAtOnce = 32;  // columns

  using Params = EndWork;
  struct Smem {
    float leaving[Tile::kM][kAtOnce + 1];
  };

  const Params& work;
  Smem& smem;

  __device__ static TmaCoords batch_coords(const Problem& p, const Matrix& matrix, int64_t index) {
    return {p.batch, matrix, index};
  }
  __device__ void begin_tile(const TileCoord&) const {}
  __device__ void end_chunk(const TileCoord&, int64_t, float (&)[Tile::kElements]) const {}
  __device__ void end_tile(const TileCoord& tile, float (&sums)[Tile::kElements]) const {
    const Problem& p = work.p;
    const int64_t c_offset = batch_offset(p.batch, p.c, tile.batch);
    const auto store_as = [&]<class Out>(Out* c) {
      work.swap_ab ? store<true>(c + c_offset, tile, sums) : store<false>(c + c_offset, tile, sums);
    };
    if (p.out_dtype == DType::kFloat32) {
      store_as(static_cast<float*>(p.c.data));
    } else {
      store_as(static_cast<typename Tile::T*>(p.c.data));
    }
  }
  __device__ void finish() const {}

 private:
  // Sums move up to the registers that are stored, so that the loop stays one. Threads that follow
  // each other store what does in C: each some of a row or, where p is swap_ab, of a column, for
  // which there is one bias.
  template <bool kTurned, class Out>
  __device__ void store(Out* c, const TileCoord& tile, float (&sums)[Tile::kElements]) const {
    using T = typename Tile::T;
    constexpr int kEach = kAtOnce / 2, kRows = Tile::kRows;  // sums of a thread
    constexpr int kThreads = Tile::kConsumerThreads;
    // What a thread stores of those at once, and how far apart.
    constexpr int kStored = Tile::kM * kAtOnce / kThreads,
                  kApart = kThreads / (kTurned ? Tile::kM : kAtOnce);
    const Problem& p = work.p;
    const Rows<Tile> place(p);
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, lane = thread % 32;
    const int first = thread / kWarpgroup * kRows + own_row<kRows>(thread % kWarpgroup / 32, lane);
    const int64_t row = tile.row, end = min(int64_t{tile.col} + Tile::kN, p.n);
    const auto rows = static_cast<int>(min(p.m - row, int64_t{Tile::kM}));
    const int down = kTurned ? thread % Tile::kM : thread / kAtOnce;
    const int right = kTurned ? thread / Tile::kM : lane;
    const float* from = &smem.leaving[down][right];
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
        smem.leaving[place.row(first + below)][i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
      }
      ptx::named_barrier_sync(1, kThreads);
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
        store_strided<2>(p.epilogue, from, kNext, bias, to, stride, ceil_div(left, kApart));
      }
      ptx::named_barrier_sync(1, kThreads);
      UNROLL
      for (int i = 0; i + kEach < Tile::kElements; ++i) sums[i] = sums[i + kEach];
    }
  }
};

// Of a thread that multiplies, and of one that copies, so that there is room for all.
template <class Tile>
constexpr int kRegisters = Tile::kConsumers == 1   ? 232
                           : Tile::kProducers == 1 ? 224
                           : Tile::kN == 64        ? 168
                                                   : 184;
template <class Tile>
constexpr int kCopying = Tile::kConsumers == 1   ? 88
                         : Tile::kProducers == 1 ? 56
                                                 : 256 - kRegisters<Tile>;
// A block has as many as its threads begin with: who takes more waits for ever.
template <class Tile>
constexpr bool kHasRegisters =
    Tile::kConsumers * kRegisters<Tile> + Tile::kProducers * kCopying<Tile> <=
    65536 / Tile::kThreads / 8 * 8 * (Tile::kThreads / kWarpgroup);

template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_unaligned_kernel(const __grid_constant__ typename Epilogue::Params work) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<mma_tma::Smem<Tile, Epilogue>&>(dynamic_smem);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init_stages(Tile::kStages, smem.full, kWarpgroup + 1, smem.empty,
                              Tile::kConsumerThreads / 32 * Tile::kCluster);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Tile::kCluster > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  ptx::pdl_launch_dependents();
  const int warpgroup = ptx::warp_uniform(threadIdx.x / kWarpgroup);
  if (warpgroup > 0 && warpgroup <= Tile::kConsumers) {
    ptx::setmaxnreg_inc<kRegisters<Tile>>();
    const int lane_row = own_row<Tile::kRows>(static_cast<int>(threadIdx.x) / 32 % 4,
                                              static_cast<int>(threadIdx.x) % 32);
    const auto multiply = [&](const mma_tma::WorkTile& work_tile, bool ends,
                              ptx::PipelineState& ring, int length, int consumer, int lane,
                              float(&sums)[Tile::kElements]) {
      const Lines<Tile::kAMnMajor> lines(work.p, work_tile.tile, work_tile.k_begin);
      const Halves<Tile> halves(lines, Rows<Tile>(work.p), consumer * Tile::kRows + lane_row, lane);
      return multiply_chunk<Tile, Epilogue>(smem, halves, ends, ring, length, lane, sums);
    };
    mma_tma::consume<Tile, Epilogue>(work, smem, multiply);
  } else {
    ptx::setmaxnreg_dec<kCopying<Tile>>();
    produce<Tile, Epilogue>(work, smem);
  }
}

template <class Tile>
bool run_tile(EndWork work, int64_t ranges, const Context& context) {
  static_assert(kHasRegisters<Tile>);
  const Problem& p = work.p;
  work.b = mma_tma::b_tensor_maps<Tile>({p.batch, transposed(p.b)}, p, Tile::kK);
  return mma_tma::launch_persistent<Tile, Epilogue>(mma_unaligned_kernel<Tile, Epilogue<Tile>>,
                                                    work, ranges, context);
}

}  // namespace

bool launch_mma_unaligned(const Problem& p, const Plan& plan, const Context& context) {
  if (count_tiles(p, 1, 1) == 0) return true;
  EndWork work{};
  work.swap_ab = mma_unaligned_swaps_ab(p);
  work.simple = p.epilogue.is_bias_relu_at_most();
  const Problem own = work.swap_ab ? swap_ab(p) : p;
  constexpr bool kOnlyB = true;
  const std::optional<Problem> aligned = align_operands(own, context, kOnlyB);
  if (!aligned) return false;
  work.p = *aligned;
  work.a_is_there = aligned->b.data != own.b.data;
  bool launched = false;
  with_mma_kind(*aligned, [&]<class T, bool kAMnMajor, bool kBMnMajor>() {
    launched = with_tile<std::size(h200::kMmaUnalignedTiles)>(plan.tile, [&]<int kIndex>() {
      constexpr h200::MmaUnalignedTile kTile = h200::kMmaUnalignedTiles[kIndex];
      return run_tile<Tile<T, kIndex, kTile.stages, kTile.stages_mn_major, kAMnMajor, kBMnMajor,
                           kTile.warpgroup_rows>>(work, plan.k_splits, context);
    });
  });
  return launched;
}

}  // namespace tiled::cuda
