#pragma once
// Splits float32 operands into hi and lo fp16 parts beforehand, as core/presplit.h lays them out.

#include <cstdint>
#include <span>

#include "core/complex.h"
#include "core/context.h"
#include "core/presplit.h"
#include "core/problem.h"
#include "kernels/common/group_tiles.h"

namespace tiled::cuda {

// Bytes that say which rows of a 16-bit operand may have lo parts that are not 0: one for every
// kRows rows, in each chunk of each tile of a presplit.
struct LoFlags {
  static constexpr int kRows = 8, kOfTile = Presplit::kRows / kRows;

  uint8_t* bytes = nullptr;

  // Of all tiles in a chunk. Chunks of one matrix follow one another.
  HOST_DEVICE static int64_t bytes_of_chunk(const Presplit& presplit) {
    return ceil_div(presplit.rows, Presplit::kRows) * kOfTile;
  }
  HOST_DEVICE static int64_t bytes_of_matrix(const Presplit& presplit) {
    return ceil_div(presplit.k, kChunk) * bytes_of_chunk(presplit);
  }
  HOST_DEVICE uint8_t* of(const Presplit& presplit, int64_t matrix, int64_t chunk,
                          int64_t tile) const {
    return bytes + matrix * bytes_of_matrix(presplit) + chunk * bytes_of_chunk(presplit) +
           tile * kOfTile;
  }
};

// An operand, with A's rows or B's columns as rows, and the place of its split.
struct OperandToSplit {
  Matrix matrix;  // row_stride: between rows; col_stride: along K
  Batch batch;    // the matrices to split; those that a broadcast repeats may be left out
  Presplit presplit;
  // The operand is a complex B, stored as in_place_b() describes it, transposed.
  bool is_complex = false;
  SignsOfB signs_of_b = {};
  DType dtype = DType::kFloat32;  // or a 16-bit one, beside a float32 operand
  LoFlags has_lo = {};            // of a 16-bit operand; to be written, unless null
};

// How launch_split() reads an operand that a grouped product cuts: the tiles of each group, of
// Presplit::kRows rows or of kChunk of K, follow one another in the presplit. Each begins at its
// `padded`, in units of kPad rows or of Presplit::kK of K; `presplit` has padded_length() rows, or
// K, and a chunk of inverse scales for each of the tiles if K is cut.
struct CutOperands {
  static constexpr int kPad = 8;  // rows
  GroupTiles tiles;
  bool of[2] = {};  // which of the operands is cut
  GroupedSide side = GroupedSide::kNone;
};

// The filters of a convolution as rows: K counts taps, and the padded channels of each
// (core/convolution.h).
struct FilterTaps {
  unsigned channels = 0, padded_channels = 0;
  unsigned count[2] = {};  // of taps along height and width
  int64_t stride[3] = {};  // between taps along depth, height and width
};

// Writes the presplit of a convolution's filters. The matrix's col_stride is between channels.
void launch_split_filters(const OperandToSplit& filters, const FilterTaps& taps,
                          const Context& context);

// Writes a 16-bit operand in float32, K-major and without gaps. Writes nothing if the int on
// the GPU is 0.
void launch_upcast(const OperandToSplit& operand, float* to, const int* only_if,
                   const Context& context);

// Writes the presplits of at most two operands, the second of them perhaps complex, and sets
// `zeroed` to 0.
void launch_split(std::span<const OperandToSplit> operands, std::span<int> zeroed,
                  const Context& context, const CutOperands& cut = {});

}  // namespace tiled::cuda
