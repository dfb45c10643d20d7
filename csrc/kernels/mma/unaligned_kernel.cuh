#pragma once
// The kernel of mma_unaligned: producer threads copy A as it is stored, misalignment included, and
// consumers read fragments of it into registers. unaligned_sm90.cu draws its barriers.

#include <cstdint>
#include <type_traits>

#include "core/element.h"
#include "kernels/common/launch.h"
#include "kernels/common/tensor_map_coords.cuh"
#include "kernels/common/tile_scheduler.cuh"
#include "kernels/mma/plan.h"
#include "kernels/mma/tma_kernel.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "ptx/setmaxnreg.cuh"
#include "ptx/shared_address.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace tiled::cuda::mma_unaligned {

// --- The stages of A in shared memory ------------------------------------------------------------

// A stored row is contiguous in memory: a row of a K-major A, or a column (one k of all rows) of an
// MN-major one.
//
//   K-major    a stage is one cache line of each row of the tile. The stages of a row are adjacent:
//              a step of 64 k begins anywhere in one stage and ends in the next.
//
//                row r   | line of stage 0 | line of stage 1 | ... | line of the last stage | pad |
//                               [   a step's 64 k   ]
//
//   MN-major   a stage is 64 stored rows, each with as many elements as the tile has rows. A stored
//              row is as far beyond a multiple of kAlignment bytes as in global memory.
//
//                k       | misalignment | row 0, row 1, ... |

constexpr int kCopyBytes = 16;  // one cp.async, aligned on both sides
constexpr int kWarpgroup = 128;
constexpr int kCacheLine = static_cast<int>(kCacheLineBytes);

// A stage of an MN-major A. If kAlignment_ is a cache line, copies of one cache line go to 128
// aligned bytes of shared memory and are one request to L2. Else they mostly span two such pieces
// and are two requests.
template <int kRows, int kAlignment_>
struct MnMajorStage {
  static constexpr int kAlignment = kAlignment_;
  static constexpr int kStoredRows = 64, kPitch = kRows * 2 + kAlignment;
  static constexpr int kBytes = kStoredRows * kPitch;
  // A stored row is copied in segments. A segment begins anywhere in its first 16 bytes, so it
  // needs one copy more than its length.
  static constexpr int kSegment = kRows < 64 ? kRows : 64, kSegments = kRows / kSegment;
  static constexpr int kCopies = kSegment * 2 / kCopyBytes + 1;
};

// True if MN-major stages keep the alignment to cache lines. In the largest tiles only three such
// stages would fit into shared memory, and tiles of 32 rows gain nothing by it.
template <class Tile>
constexpr bool kKeepsCacheLines = Tile::kM * Tile::kN <= 128 * 128 && Tile::kM > 32;

// A tile has kStagesKMajor stages if A is K-major, else kStagesMnMajor.
template <class T, int kIndex, int kStagesKMajor, int kStagesMnMajor, bool kAMnMajor,
          bool kBMnMajor, int kRows>
struct Tile
    : mma_tma::TileOf<T, h200::kMmaUnalignedTiles[kIndex].m, h200::kMmaUnalignedTiles[kIndex].n,
                      h200::kMmaUnalignedTiles[kIndex].cluster,
                      kAMnMajor ? kStagesMnMajor : kStagesKMajor, kAMnMajor, kBMnMajor, kRows> {
  using MnMajorStage =
      mma_unaligned::MnMajorStage<Tile::kM, kKeepsCacheLines<Tile> ? kCacheLine : kCopyBytes>;
  // Producer warpgroups are the block's first and, if there are two, its last. A single one copies
  // a step of K slower than the consumers multiply it, but the largest accumulators leave no
  // registers for a second.
  static constexpr int kProducerWarpgroups = Tile::kM * Tile::kN > 128 * 128 ? 1 : 2;
  static constexpr int kThreads = kProducerWarpgroups * kWarpgroup + Tile::kConsumerThreads;
  static constexpr int kRowBytes = Tile::kStages * kCacheLine;  // of all stages, if K-major
  static constexpr int kABytes =
      kAMnMajor ? MnMajorStage::kBytes
                : Tile::kM * (kCacheLine + ceil_div(kCopyBytes, Tile::kStages));
  using ReduceTile = mma_tma::TileOf<T, Tile::kM, Tile::kN, Tile::kCluster, Tile::kStages,
                                     kAMnMajor, false, kRows>;
};

// Bytes between the last multiple of kAlignment and the address.
template <int kAlignment>
__device__ int misalignment(const uint8_t* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kAlignment);
}
template <int kAlignment>
__device__ const uint8_t* align_down(const uint8_t* address) {
  return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(address) &
                                          ~uintptr_t{kAlignment - 1});
}

// The stored rows of A in global memory, from the tile's first row and k = `begin` on.
template <bool kAMnMajor>
struct StoredRows {
  const uint8_t* data;
  int64_t pitch;       // bytes
  const uint8_t* end;  // of the matrix
  __device__ StoredRows(const Problem& p, const TileCoord& tile, int64_t begin)
      : pitch((kAMnMajor ? p.a.col_stride : p.a.row_stride) * 2) {
    const auto* matrix = reinterpret_cast<const uint8_t*>(static_cast<const uint16_t*>(p.a.data) +
                                                          batch_offset(p.batch, p.a, tile.batch));
    data = matrix + (kAMnMajor ? begin : tile.row) * pitch + (kAMnMajor ? tile.row : begin) * 2;
    end = matrix + ((kAMnMajor ? p.k : p.m) - 1) * pitch + (kAMnMajor ? p.m : p.k) * 2;
  }
};

// Avoids bank conflicts of the consumers' loads. It permutes the rows of the tile, so that other
// rows are multiplied together, and moves stored rows apart in shared memory. If A is K-major, a
// warp loads four adjacent words of eight rows. If it is MN-major, a warp loads one element of
// eight rows from each of four stored rows, which are two apart.
//
//   K-major               The eight rows are 2^log_stride apart. They are equally misaligned to 16
//                         bytes, but begin in eight different 16 bytes of a cache line.
//   MN-major, kAlignment  The pitch of stored rows puts the four 32 bytes apart, and the eight rows
//   of 16 bytes           are adjacent.
//   MN-major, kAlignment  The four stored rows are an odd multiple of 2^log_stride words apart. The
//   of a cache line       eight rows fill the words in between; a thread's two rows share a word.
template <class Tile>
struct BankLayout {
  static constexpr bool kPairsRows = Tile::kAMnMajor && kKeepsCacheLines<Tile>;
  int log_stride = 0;
  int padding = 0;         // bytes between the stages of two rows, if K-major
  bool staggered = false;  // MN-major: the four stored rows are moved 32 bytes apart

  __device__ explicit BankLayout(const Problem& p) {
    if (kPairsRows) {
      log_stride = min(__ffsll(p.a.col_stride) - 1, 3);
      staggered = p.a.col_stride % 16 == 0;
    } else if (!Tile::kAMnMajor) {
      const auto bytes = static_cast<int>(p.a.row_stride * 2 % 32);
      log_stride = min(5 - __ffs(bytes % 16 | 16), Tile::kM == 32 ? 2 : 3);
      if (bytes == 0) padding = kCopyBytes;
    }
  }
  // The offset in its pitch of an MN-major stored row, which is at `from` in global memory.
  __device__ int offset(const uint8_t* from, int stored_row) const {
    return staggered ? misalignment<kCopyBytes>(from) + stored_row / 2 % 4 * 32
                     : misalignment<Tile::MnMajorStage::kAlignment>(from);
  }
  // The row of the tile that is row `i` of the products.
  __device__ int row(int i) const {
    const int group = i / 8;
    if (kPairsRows) {  // within 64 rows
      const int warp = i / 16 % 4, lane = i % 8, low = lane & ((1 << log_stride) - 1);
      return i / 64 * 64 + group % 2 + (low << 1) + (warp << (1 + log_stride)) +
             (lane >> log_stride << (3 + log_stride));
    }
    return (group >> log_stride << (log_stride + 3)) + (group & ((1 << log_stride) - 1)) +
           (i % 8 << log_stride);
  }
};

// --- Producers -----------------------------------------------------------------------------------

// Threads copy A by cp.async in aligned pieces of 16 bytes, which may begin and end outside of the
// tile's elements; TMA loads B.

// Copies a work tile's part of A, by a producer warpgroup. `rows` of the tile's rows are in the
// matrix, and its range of K has `k` elements.
template <class Tile>
class UnalignedLoader {
  static constexpr bool kMnMajor = Tile::kAMnMajor;
  using Stage = typename Tile::MnMajorStage;

 public:
  __device__ UnalignedLoader(const StoredRows<kMnMajor>& from, const BankLayout<Tile>& layout,
                             int rows, int k)
      : end_(from.end), pitch_(from.pitch), layout_(layout), rows_(rows), k_(k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
    copies_any_ = lane < kRowsByWarp * kCopies;
    first_ = warp * kRowsByWarp + lane / kCopies, byte_ = lane % kCopies * kCopyBytes;
    from_ = from.data + first_ * pitch_;
  }
  // Stages of a work tile. If A is K-major there is one more, in which the last step ends.
  __device__ static int count_stages(int k) { return ceil_div(k, 64) + (kMnMajor ? 0 : 1); }
  // Copies the work tile's stage `i`. Elements beyond the end of K become zeros. Rows beyond the
  // matrix are undefined, since their products are never stored.
  __device__ void copy(uint8_t (*stages)[Tile::kABytes], int stage, int i) const {
    const int left = k_ - i * 64;
    // Copies inside the matrix need no test. A whole K-major stage ends within its rows. Copies of
    // an MN-major stage read up to 32 bytes beyond its last stored row, so others must follow it.
    if (kMnMajor ? (left - 64) * pitch_ >= 2 * kCopyBytes : left >= 64) {
      copy_each<true>(stages, stage, i, left);
    } else {
      copy_each<false>(stages, stage, i, left);
    }
  }

 private:
  static constexpr int kCopies = kMnMajor ? Stage::kCopies : kCacheLine / kCopyBytes;  // a row
  // Stored rows that a warp and a warpgroup copy at once.
  static constexpr int kRowsByWarp = 32 / kCopies, kRowsAtOnce = kWarpgroup / 32 * kRowsByWarp;

  // kWhole: every copy stays inside the matrix.
  template <bool kWhole>
  __device__ void copy_each(uint8_t (*stages)[Tile::kABytes], int stage, int i, int left) const {
    constexpr int kUnrolled = kWhole ? 32 : 2;
    const int64_t next = kRowsAtOnce * pitch_;
    if constexpr (kMnMajor) {
      const uint32_t to = ptx::shared_address(stages[stage]) + first_ * Stage::kPitch;
      UNROLL
      for (int segment = 0; segment < Stage::kSegments; ++segment) {
        const int bytes = (rows_ - segment * 64) * 2;  // in the matrix
        if (!copies_any_ || byte_ - kCopyBytes + 2 >= bytes) break;
        // The last copy of a segment is the first one of the next.
        if (segment + 1 < Stage::kSegments && byte_ == 128 && bytes > 128) continue;
        const int further = segment * 128 + byte_;
        const uint8_t* from = from_ + i * 64 * pitch_;
        _Pragma("unroll kUnrolled") for (int row = 0; row < 64; row += kRowsAtOnce) {
          if (row + first_ < 64) {
            const uint8_t* aligned = align_down<kCopyBytes>(from);
            const int at = row * Stage::kPitch + layout_.offset(aligned, row + first_) + further;
            copy_16<kWhole>(to + at, aligned + further, row + first_ < left,
                            bytes - byte_ + misalignment<kCopyBytes>(from));
          }
          from += next;
        }
      }
    } else {
      const int to_pitch = Tile::kRowBytes + layout_.padding;
      uint32_t to = ptx::shared_address(stages[0]) + first_ * to_pitch + stage * kCacheLine + byte_;
      const uint8_t* from = from_ + int64_t{i} * kCacheLine;
      _Pragma("unroll kUnrolled") for (int row = 0; row < Tile::kM; row += kRowsAtOnce) {
        if (row + first_ < rows_) {
          copy_16<kWhole>(to, align_down<kCacheLine>(from) + byte_, true,
                          left * 2 - byte_ + misalignment<kCacheLine>(from));
        }
        from += next, to += kRowsAtOnce * to_pitch;
      }
    }
  }
  // Copies 16 bytes. The first `inside` of them belong to the stored row, if there is such a row.
  // If the matrix ends within them, elements are copied one by one, and the thread waits: a
  // cp.async of fewer bytes may read all 16.
  template <bool kWhole>
  __device__ void copy_16(uint32_t to, const uint8_t* from, bool has_row, int inside) const {
    if (kWhole) return ptx::cp_async_16(to, from);
    inside = has_row ? max(min(inside, kCopyBytes), 0) : 0;
    if (inside > 0 && from + kCopyBytes > end_) {
      ptx::copy_x8_16bit_zfill(to, from, inside / 2);
    } else {
      ptx::cp_async_16_zfill(to, from, inside);
    }
  }
  const uint8_t *from_, *end_;
  int64_t pitch_;
  BankLayout<Tile> layout_;
  int rows_, k_;
  int first_, byte_;  // the thread's first stored row, and its 16 bytes' place in each
  bool copies_any_;   // false for the last lanes of a warp if rows take 27 lanes
};

// Fills stages. If there are two producer warpgroups, they alternate.
template <class Tile, class Epilogue>
__device__ void produce(const typename Epilogue::Params& params,
                        mma_tma::Smem<Tile, Epilogue>& smem) {
  const Problem& p = params.p;
  constexpr int kWarps = kWarpgroup / 32;
  const int warp = ptx::warp_uniform(threadIdx.x / 32), warpgroup = warp < kWarps ? 0 : 1;
  ptx::PipelineState pipe{.stages = Tile::kStages, .parity = 1};
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) pipe.advance();
  };
  skip(warpgroup);
  // If the previous kernel does not write A, only the thread that loads B waits for it.
  bool waited = !params.a_is_ready;
  if (waited) ptx::pdl_wait();
  constexpr unsigned kCluster = Tile::kCluster;
  const int64_t work_tiles = params.tiles * params.k_splits;
  int stage = warpgroup;  // of the work tile
  for (int64_t index = blockIdx.x / kCluster; index < work_tiles; index += gridDim.x / kCluster) {
    const mma_tma::WorkTile work_tile = mma_tma::locate_work_tile<Tile>(params, index);
    const auto left = [](int64_t all, int first) {
      return static_cast<int>(min(all - first, int64_t{1} << 16));
    };
    const auto k = static_cast<int>(work_tile.k_end - work_tile.k_begin);
    const UnalignedLoader<Tile> a(StoredRows<Tile::kAMnMajor>(p, work_tile.tile, work_tile.k_begin),
                                  BankLayout<Tile>(p), left(p.m, work_tile.tile.row), k);
    const mma_tma::OperandTile<Tile::kN, Tile::kBMnMajor, Tile::kCluster> b{
        params.b, work_tile.tile.col, left(p.n, work_tile.tile.col),
        Epilogue::batch_coords(p, p.b, work_tile.tile.batch), mma_tma::rank<Tile>()};
    const int count = UnalignedLoader<Tile>::count_stages(k);
    for (; stage < count; stage += Tile::kProducerWarpgroups, skip(Tile::kProducerWarpgroups)) {
      uint64_t* full = &smem.full[pipe.stage];
      ptx::mbarrier_wait(&smem.empty[pipe.stage], pipe.parity);
      __syncwarp();
      // The warps alternate in loading B, so that none has more to do than the others.
      if (warp % kWarps == pipe.stage / Tile::kProducerWarpgroups % kWarps && ptx::elect_one()) {
        // A step with a K-major A ends in its second stage, with which its B is loaded.
        const int step = Tile::kAMnMajor ? stage : stage - 1;
        if (step < 0) {
          ptx::mbarrier_arrive(full);
        } else {
          if (!waited) ptx::pdl_wait();
          waited = true;
          ptx::arrive_expect_tx(full, b.bytes(Tile::kK));
          const int64_t at = work_tile.k_begin + step * Tile::kK;
          b.load(smem.b[pipe.stage], static_cast<int>(at), p.k - at <= Tile::kK, full);
        }
      }
      a.copy(smem.a, pipe.stage, stage);
      ptx::cp_async_mbarrier_arrive_noinc(full);
    }
    stage -= count;
  }
  // The next warpgroup to load waits for the arrivals of the cluster's other block.
  if (stage == 0) mma_tma::drain<1, Tile>(smem, pipe, 0);
}

// --- Fragments of A ------------------------------------------------------------------------------

// A fragment register holds two adjacent k of one row. If A is K-major, they are within two words,
// which a funnel shift aligns:
//
//                 word(0)   word(1)
//                | .  a0 | a1  .  |   ->   | a0 a1 |      or, if aligned, word(0) itself
//
// If A is MN-major, they are elements of two stored rows, read one by one.

// The first of a thread's two rows, among those that its warpgroup multiplies. The second is eight
// rows below, if the warpgroup has 64 rows.
template <int kRows>
__device__ int fragment_row(int warp, int lane) {
  return warp * (kRows / 4) + lane / 4;
}

// Reads a consumer thread's elements of A from a stage.
template <class Tile>
class FragmentReader {
  static constexpr bool kMnMajor = Tile::kAMnMajor;
  static constexpr int kCore = 8, kCores = Tile::kK / kCore;  // core matrices are 8 x 8
  using Stage = typename Tile::MnMajorStage;

 public:
  // `first` is the thread's first row among the tile's products; layout.row() maps it to the tile.
  __device__ FragmentReader(const StoredRows<kMnMajor>& a, const BankLayout<Tile>& layout,
                            int first, int lane) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const int stored_row = kMnMajor ? lane % 4 * 2 + i : layout.row(first + i * kCore);
      const uint8_t* from = a.data + stored_row * a.pitch;
      if (kMnMajor) {
        UNROLL
        for (int j = 0; j < kCores; ++j, from += kCore * a.pitch) {
          const int offset = layout.offset(from, stored_row) + layout.row(first) * 2;
          element_[j][i] = (stored_row + j * kCore) * Stage::kPitch + offset;
        }
      } else {
        word_[i] = misalignment<kCacheLine>(from) / 4 + lane % 4;
        byte_[i] = stored_row * (Tile::kRowBytes + layout.padding) + word_[i] * 4;
        shift_[i] = misalignment<4>(from) * 8;
      }
    }
  }

  // Reads a step's four fragments of 16 k. A step with a K-major A spans `stage` and the next one.
  __device__ void read(const uint8_t (*stages)[Tile::kABytes], int stage,
                       uint32_t (&a_frag)[4][4]) const {
    if constexpr (kMnMajor) {
      read_each(a_frag, [&](int second, int k) {
        const auto element = [&](int next) -> uint32_t {
          constexpr int kSecond = BankLayout<Tile>::kPairsRows ? 2 : kCore * 2;  // bytes
          const uint8_t* from = stages[stage] + element_[k / kCore][next] + second * kSecond;
          return *reinterpret_cast<const uint16_t*>(from);
        };
        return element(0) | element(1) << 16;
      });
    } else {
      const uint8_t* first = stages[0] + stage * kCacheLine;
      stage == Tile::kStages - 1 ? read_words<true>(first, a_frag)
                                 : read_words<false>(first, a_frag);
    }
  }

 private:
  // kWraps: the step begins in the last stage and ends in the first.
  template <bool kWraps>
  __device__ void read_words(const uint8_t* stage, uint32_t (&a_frag)[4][4]) const {
    int first[2] = {word_[0], word_[1]};
    // Keeps nvcc from computing before the main loop which words wrap, which would cost registers.
    if (kWraps) asm volatile("" : "+r"(first[0]), "+r"(first[1]));
    read_each(a_frag, [&](int second, int k) {
      const auto word = [&](int next) {
        const int further = k / 2 + next;
        const bool wraps = kWraps && first[second] + further >= kCacheLine / 4;
        return *reinterpret_cast<const uint32_t*>(stage + byte_[second] + further * 4 -
                                                  (wraps ? Tile::kRowBytes : 0));
      };
      return __funnelshift_r(word(0), word(1), shift_[second]);
    });
  }
  // Fills each register with pair(second, k), of the thread's first or second row. Warpgroups of 32
  // rows have no second row.
  template <class Pair>
  __device__ void read_each(uint32_t (&a_frag)[4][4], const Pair& pair) const {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      UNROLL
      for (int j = 0; j < 4; ++j) {
        const int second = j % 2;
        a_frag[i][j] = second * kCore < Tile::kRows / 4 ? pair(second, i * 16 + j / 2 * kCore) : 0;
      }
    }
  }

  // MN-major: the places in a stage of two adjacent k of the thread's first row, for each eight k.
  int element_[kCores][2];
  // K-major, for each of the two rows: the place of the step's first word in a stage and in its
  // cache line, and by how many bits words are shifted.
  int byte_[2], word_[2], shift_[2];
};

// --- Consumers, and the kernel -------------------------------------------------------------------

namespace wgmma = ptx::wgmma;

// Sums a chunk, as mma_tma::multiply_chunk() does. `ends` is true for the work tile's last chunk,
// after which the last stage of a K-major A is released, too.
template <class Tile, class Epilogue>
__device__ int multiply_chunk(mma_tma::Smem<Tile, Epilogue>& smem,
                              const FragmentReader<Tile>& reader, bool ends,
                              ptx::PipelineState& pipe, int length, int lane,
                              float (&acc)[Tile::kElements]) {
  constexpr bool kMnMajor = Tile::kAMnMajor;
  constexpr int kB16 = Tile::kBMnMajor ? 128 : 2;  // 16 k further, in a descriptor
  constexpr bool kBFloat16 = std::is_same_v<typename Tile::T, BFloat16>;
  const uint64_t first_b = wgmma::swizzled_descriptor<Tile::kBoxBytes>(smem.b[0]);
  UNROLL
  for (float& each : acc) each = 0;
  uint32_t a_frag[2][4][4];  // of this step and the next one
  int b_stage = 0, read_stage = 0;
  // If A is K-major, a step's B arrives with the second of its two stages.
  const auto read = [&](uint32_t(&to)[4][4]) {
    read_stage = pipe.stage;
    if (!kMnMajor) pipe.advance();
    b_stage = pipe.stage;
    ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
    reader.read(smem.a, read_stage, to);
    if (kMnMajor) pipe.advance();
  };
  if (!kMnMajor) ptx::mbarrier_wait(&smem.full[pipe.stage], pipe.parity);
  read(a_frag[0]);
  NO_UNROLL
  for (int k = 0;; k += 2 * Tile::kK) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint64_t b = first_b + b_stage * (sizeof(smem.b[0]) / 16);
      wgmma::fence_operand(acc), wgmma::fence_operand(a_frag[i]);
      wgmma::fence();
      UNROLL
      for (int j = 0; j < 4; ++j) {
        wgmma::mma<kBFloat16, Tile::kBMnMajor>(acc, a_frag[i][j], b + j * kB16);
      }
      wgmma::commit_group();
      int stage = read_stage;
      if (k + (i + 1) * Tile::kK >= length) {
        if (kMnMajor || !ends) return stage;
        wgmma::wait_group<0>();
        mma_tma::release(smem, stage, lane);
        stage = pipe.stage;
        pipe.advance();
        return stage;
      }
      // ptxas serializes wgmma unless the next fragments are read here: after the products are
      // issued, and before they are waited for.
      read(a_frag[1 - i]);
      wgmma::wait_group<0>();
      mma_tma::release(smem, stage, lane);
    }
  }
}

// Registers of a consumer thread and of a producer thread.
template <class Tile>
constexpr int kConsumerRegisters = Tile::kConsumers == 1            ? 232
                                   : Tile::kProducerWarpgroups == 1 ? 224
                                   : Tile::kN == 64                 ? 168
                                                                    : 184;
template <class Tile>
constexpr int kProducerRegisters =
    Tile::kConsumers == 1            ? 88
    : Tile::kProducerWarpgroups == 1 ? 56
                                     : 256 - kConsumerRegisters<Tile>;
// True if the block starts with as many registers. Otherwise setmaxnreg.inc would wait forever.
template <class Tile>
constexpr bool kFitsRegisters = Tile::kConsumers * kConsumerRegisters<Tile> +
                                    Tile::kProducerWarpgroups * kProducerRegisters<Tile> <=
                                65536 / Tile::kThreads / 8 * 8 * (Tile::kThreads / kWarpgroup);

template <class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_unaligned_kernel(const __grid_constant__ typename Epilogue::Params params) {
  extern __shared__ __align__(1024) uint8_t dynamic_smem[];
  auto& smem = reinterpret_cast<mma_tma::Smem<Tile, Epilogue>&>(dynamic_smem);
  // Each thread of a producer warpgroup arrives when its copies are complete, and one more with the
  // bytes of B.
  mma_tma::init_barriers(smem, kWarpgroup + 1);
  const int warpgroup = ptx::warp_uniform(threadIdx.x / kWarpgroup);
  if (warpgroup > 0 && warpgroup <= Tile::kConsumers) {
    ptx::setmaxnreg_inc<kConsumerRegisters<Tile>>();
    const int lane_row = fragment_row<Tile::kRows>(static_cast<int>(threadIdx.x) / 32 % 4,
                                                   static_cast<int>(threadIdx.x) % 32);
    const auto multiply = [&](const mma_tma::WorkTile& work_tile, bool ends,
                              ptx::PipelineState& pipe, int length, int consumer, int lane,
                              float(&acc)[Tile::kElements]) {
      const StoredRows<Tile::kAMnMajor> a(params.p, work_tile.tile, work_tile.k_begin);
      const FragmentReader<Tile> reader(a, BankLayout<Tile>(params.p),
                                        consumer * Tile::kRows + lane_row, lane);
      return multiply_chunk<Tile, Epilogue>(smem, reader, ends, pipe, length, lane, acc);
    };
    mma_tma::consume<Tile, Epilogue>(params, smem, multiply);
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters<Tile>>();
    produce<Tile, Epilogue>(params, smem);
  }
}

}  // namespace tiled::cuda::mma_unaligned
