#pragma once
// How mma_sync loads its operands: stages in shared memory, which all threads of a block fill.

#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/mma/load_16bit.cuh"
#include "ptx/cp_async.cuh"

namespace tiled::cuda::mma_sync {

// A stage of an operand as it is stored: kMn K-major rows or, if it is MN-major, kK rows along M or
// N. Padding lets eight rows begin in different banks.
template <int kMn, int kK, bool kMnMajor>
struct OperandStage {
  static constexpr int kStoredRows = kMnMajor ? kK : kMn, kLength = kMnMajor ? kMn : kK;
  static constexpr int kPitch = kLength + kX8;
  alignas(16) uint16_t at[kStoredRows][kPitch];
};

// How eight elements of a stored row are loaded: by one cp.async, from the two aligned 16-byte
// words that hold them, or one by one.
enum class LoadMode { kCpAsync, kFunnelShift, kGather };

// Loads stages of an operand, by all threads of the block.
template <class Stage, int kMn, int kK, bool kMnMajor, int kThreads>
class OperandLoader {
  static constexpr int kX8s = Stage::kLength / kX8, kRowsAtOnce = kThreads / kX8s;
  static constexpr int kRowsEach = Stage::kStoredRows / kRowsAtOnce;
  static_assert(kThreads % kX8s == 0 && Stage::kStoredRows % kRowsAtOnce == 0,
                "every thread loads eight elements of as many rows");

 public:
  // The words that a thread has loaded to registers for a stage.
  struct Words {
    uint4 low[kRowsEach], high[kRowsEach];
  };

  // `data` is the first element of the first stage; mn_left of A's rows or B's columns are left in
  // the matrix, from there on.
  __device__ OperandLoader(const uint16_t* data, int64_t mn_stride, int64_t k_stride, LoadMode mode,
                           int64_t mn_left)
      : element_stride_(kMnMajor ? mn_stride : k_stride),
        row_stride_(kMnMajor ? k_stride : mn_stride),
        mode_(mode),
        mn_left_(static_cast<int>(min(mn_left, int64_t{kMn}))) {
    data_ = data + row() * row_stride_ + element() * element_stride_;
  }

  // Starts to load the next stage; k_left of K are in the matrix. Elements beyond K become zero;
  // rows or columns beyond the matrix become anything.
  __device__ void begin(Stage& to, int64_t k_left, Words& words) const {
    if (mode_ == LoadMode::kCpAsync) {
      const auto k = static_cast<int>(min(k_left, int64_t{kK}));
      const int rows = (kMnMajor ? k : mn_left_) - row();
      const bool inside = element() < (kMnMajor ? mn_left_ : k);
      UNROLL
      for (int i = 0; i < kRowsEach; ++i) {
        ptx::cp_async_16_zfill(&to.at[row() + i * kRowsAtOnce][element()],
                               data_ + i * kRowsAtOnce * row_stride_,
                               inside && i * kRowsAtOnce < rows ? 16 : 0);
      }
    } else if (shifts(k_left)) {
      // A load that would begin beyond the matrix reads elements inside it, which are not used.
      const uint16_t* first = kMnMajor && element() >= mn_left_ ? data_ - element() : data_;
      const int last = kMnMajor ? kK : mn_left_ - 1 - row();
      UNROLL
      for (int i = 0; i < kRowsEach; ++i) {
        const uint16_t* from = first + min(i * kRowsAtOnce, last) * row_stride_;
        const auto* aligned = reinterpret_cast<const uint4*>(from - misalignment_16(from) / 2);
        words.low[i] = aligned[0], words.high[i] = aligned[1];
      }
    }
  }

  // Stores what begin() has loaded to registers, and loads what is gathered. A cp.async is waited
  // for by the caller.
  __device__ void end(Stage& to, int64_t k_left, const Words& words) {
    if (mode_ != LoadMode::kCpAsync && shifts(k_left)) {
      const uint16_t* first = kMnMajor && element() >= mn_left_ ? data_ - element() : data_;
      const int last = kMnMajor ? kK : mn_left_ - 1 - row();
      UNROLL
      for (int i = 0; i < kRowsEach; ++i) {
        const uint16_t* from = first + min(i * kRowsAtOnce, last) * row_stride_;
        *reinterpret_cast<uint4*>(&to.at[row() + i * kRowsAtOnce][element()]) =
            funnel_shift_x8(words.low[i], words.high[i], misalignment_16(from));
      }
    } else if (mode_ != LoadMode::kCpAsync) {
      const auto k = static_cast<int>(min(k_left, int64_t{kK}));
      const int rows = (kMnMajor ? k : mn_left_) - row();
      const int inside = (kMnMajor ? mn_left_ : k) - element();
      const uint16_t* from = data_;
      NO_UNROLL
      for (int i = 0; i < kRowsEach; ++i, from += kRowsAtOnce * row_stride_) {
        *reinterpret_cast<uint4*>(&to.at[row() + i * kRowsAtOnce][element()]) =
            gather_x8(from, element_stride_, i * kRowsAtOnce < rows ? inside : 0);
      }
    }
    data_ += kK * (kMnMajor ? row_stride_ : element_stride_);
  }

 private:
  // True if the stage is loaded by aligned words: the second of two may lie beyond the stage, and
  // has to be in the matrix.
  __device__ bool shifts(int64_t k_left) const {
    return mode_ == LoadMode::kFunnelShift && k_left >= kK + 2 * kX8;
  }
  // The thread's first stored row and its eight elements of each.
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kX8s; }
  __device__ static int element() { return static_cast<int>(threadIdx.x) % kX8s * kX8; }

  const uint16_t* data_;
  int64_t element_stride_, row_stride_;  // along and between stored rows
  LoadMode mode_;
  int mn_left_;
};

}  // namespace tiled::cuda::mma_sync
