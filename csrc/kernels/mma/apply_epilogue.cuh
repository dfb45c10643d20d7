#pragma once
// Epilogues applied to a warp's accumulators in registers, as wgmma leaves them (ptx/wgmma.cuh): 16
// rows of a tile, of which a thread has kElements elements. Results replace the accumulators, so
// stores do not depend on the epilogue.

#include <cstdint>

#include "core/element.h"
#include "core/epilogue.h"
#include "kernels/common/launch.h"

namespace tiled::cuda {

// The columns of a warp's rows that are in shared memory at a time. The padding lets lanes write
// eight rows without bank conflicts.
constexpr int kStagedCols = 32;
using RowStaging = float[16][kStagedCols + 8];

// The functions below that an epilogue calls.
struct EpilogueSteps {
  bool bias_relu = false;  // apply_bias_relu()
  bool more = false;       // apply_epilogue()
  bool combines = false;   // combine(), within apply_epilogue(): alpha, bias and beta

  static EpilogueSteps of(const Epilogue& epilogue) {
    const bool combines = epilogue.alpha != 1 || epilogue.beta != 0;
    const bool relu = epilogue.activation == Activation::kRelu;
    return {.bias_relu = !combines && (epilogue.bias != nullptr || relu),
            .more = !epilogue.is_bias_relu_at_most(),
            .combines = combines};
  }
};

// Below, (row, col) is the first element of the warp's rows, and C's type is T or float. `biases`
// are those of the tile's columns, if the problem has a bias. column_in_tile(i) is the column in
// the tile of accumulators i to i + 31 of a row.

// Adds the bias, if there is one, and applies ReLU, if that is the activation.
template <int kElements, class ColumnInTile>
__device__ void apply_bias_relu(const Epilogue& epilogue, const float (&biases)[kElements * 2],
                                const ColumnInTile& column_in_tile, float (&acc)[kElements]) {
  if (epilogue.bias != nullptr) {
    UNROLL
    for (int i = 0; i < kElements; i += 4) {
      const float* of_cols = &biases[column_in_tile(i / 16 * 32) + i % 16 * 2];
      const float2 bias = *reinterpret_cast<const float2*>(&of_cols[threadIdx.x % 4 * 2]);
      acc[i] += bias.x, acc[i + 1] += bias.y, acc[i + 2] += bias.x, acc[i + 3] += bias.y;
    }
  }
  if (epilogue.activation == Activation::kRelu) {
    UNROLL  // by index: a reference to each would put acc into local memory
    for (int i = 0; i < kElements; ++i) acc[i] = activate(Activation::kRelu, acc[i]);
  }
}

// Loads kStagedCols columns of C, widened to float. Elements outside the matrix get the values of
// its last row and column.
template <class Out>
__device__ void stage_c(const Problem& p, const Out* c, int64_t row, int64_t col,
                        RowStaging& staging) {
  static_assert(kStagedCols == 32, "a lane loads a column");
  const int lane = threadIdx.x % 32;
  const auto rows = static_cast<int>(min(p.m - row, int64_t{16}));
  c += min(row, p.m - 1) * p.c.row_stride + min(col + lane, p.n - 1) * p.c.col_stride;
  Out old[16];
  UNROLL
  for (int i = 0; i < 16; ++i) {
    old[i] = *c;
    if (i + 1 < rows) c += p.c.row_stride;
  }
  UNROLL
  for (int i = 0; i < 16; ++i) staging[i][lane] = widen(old[i]);
}

// Applies any epilogue, after apply_bias_relu() where that is one of its steps. The loop is not
// unrolled, so that each activation is compiled once: an iteration takes the first kAtOnce
// accumulators, enough to hide the latency of an activation, and moves the others down. If
// kKeepsNan and the epilogue reads C, an accumulator that is NaN becomes C's old value.
template <bool kKeepsNan, class T, int kElements, class ColumnInTile>
__device__ void apply_epilogue(const Problem& p, bool combines, int64_t c_offset, int64_t row,
                               int64_t col, const float (&biases)[kElements * 2],
                               RowStaging& staging, const ColumnInTile& column_in_tile,
                               float (&acc)[kElements]) {
  constexpr int kAtOnce = kElements < 16 ? kElements : 16;
  static_assert(kElements % kAtOnce == 0 && 2 * kAtOnce <= kStagedCols);
  const Epilogue& epilogue = p.epilogue;
  const bool reads_c = epilogue.beta != 0;
  const int lane = threadIdx.x % 32;
  NO_UNROLL
  for (int first = 0; first < 2 * kElements; first += 2 * kAtOnce) {
    float x[kAtOnce], old[kAtOnce] = {};
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) x[i] = acc[i];
    if (combines) {
      const int in_tile = column_in_tile(first);
      if (reads_c) {
        __syncwarp();  // all lanes have read what was staged before
        if (p.out_dtype == DType::kFloat32) {
          const auto* c = static_cast<const float*>(p.c.data) + c_offset;
          stage_c(p, c, row, col + in_tile, staging);
        } else {
          const auto* c = static_cast<const T*>(p.c.data) + c_offset;
          stage_c(p, c, row, col + in_tile, staging);
        }
        __syncwarp();
        UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          old[i] = staging[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
        }
      }
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const float* bias = &biases[in_tile + i / 4 * 8 + lane % 4 * 2 + i % 2];
        x[i] = combine(epilogue, x[i], epilogue.bias == nullptr ? 0 : *bias, old[i]);
      }
    }
    activate_each(epilogue.activation, x);
    if (kKeepsNan && reads_c) {
      UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (isnan(acc[i])) x[i] = old[i];
      }
    }
    UNROLL
    for (int i = 0; i + kAtOnce < kElements; ++i) acc[i] = acc[i + kAtOnce];
    UNROLL
    for (int i = 0; i < kAtOnce; ++i) acc[kElements - kAtOnce + i] = x[i];
  }
  __syncwarp();  // what is stored next may take the same shared memory
}

}  // namespace tiled::cuda
