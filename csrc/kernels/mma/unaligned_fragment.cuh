#pragma once
// How mma_unaligned's consumers read fragments of A from shared memory into registers.
//
// A fragment register holds two adjacent k of one row. Where A is K-major, they lie within two
// words, which a funnel shift aligns:
//
//                 word(0)   word(1)
//                | .  a0 | a1  .  |   ->   | a0 a1 |      or, where aligned, word(0) itself
//
// Where A is MN-major, they are elements of two stored rows, read one by one.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/mma/unaligned_layout.cuh"

namespace tiled::cuda::mma_unaligned {

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

  // MN-major: where two adjacent k of the thread's first row are in a stage, for each eight k.
  int element_[kCores][2];
  // K-major, for each of the two rows: where the step's first word is in a stage and in its cache
  // line, and by how many bits words are shifted.
  int byte_[2], word_[2], shift_[2];
};

}  // namespace tiled::cuda::mma_unaligned
