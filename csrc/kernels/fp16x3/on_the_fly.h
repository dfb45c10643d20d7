#pragma once
// What the rungs share that split the long operand, `w`, in flight, whichever of A and B it is. `x`
// is the other one, a panel of whose rows they multiply at a time.
//
// A unit is some columns of w by a chunk of K, for a panel of x; a stretch is all units that need
// the same part of x. Units are numbered by columns first, then panels, chunks, matrices. The sums
// of units go to memory, and another kernel adds those of all chunks in order.

#include <cstdint>
#include <functional>

#include "core/context.h"
#include "core/order_fp16x3.h"
#include "core/presplit.h"
#include "core/problem.h"

namespace tiled::cuda {

struct InFlight {
  Problem p;
  // row_stride: between w's columns, which are rows of A where w is A, or x's rows; col_stride: K.
  Matrix w, x;
  bool w_is_a, w_along_k;       // its neighbours in memory are neighbours along K, or else columns
  bool w_in_fours, x_in_fours;  // that are copied at once; x's only along K
  int64_t w_count, x_count;
  int cols, panel_rows;  // of a unit
  unsigned panels, chunks;
  int64_t first_matrix, first_unit;  // of this launch: in the batch, among the units of columns
  unsigned matrices, units;          // in this launch: units of columns
  int64_t max_sums_bytes;            // where one unit does not take more
  float* sums;                       // of chunks: (matrices, chunks, x_count, units * cols)
  unsigned long long* recomputed;    // counts marked elements, or null
  Presplit presplit_x;               // for the rungs that split x beforehand

  HOST_DEVICE unsigned stretches() const { return matrices * chunks * panels; }
  HOST_DEVICE int64_t sums_stride() const { return int64_t{units} * cols; }
};

// All sums are promoted alike from here on.
inline constexpr int kMinKInFlight = 512;
static_assert(fp16x3::promotion(kMinKInFlight) == fp16x3::promotion(kChunk));

inline constexpr int64_t kMaxSumsBytes = int64_t{64} << 20, kLeastSumsBytes = int64_t{1} << 20;

// Of units of so many columns, with panels of so many rows at most.
InFlight in_flight(const Problem& p, int cols, int max_rows, int64_t max_sums_bytes);

// For as many units at a time as there is memory for the sums of: calls launch() with how many
// blocks are to share them, each one part after another, and has the sums added and stored. A block
// works on `teams` units at a time.
void run_in_flight(InFlight& work, int teams, const Context& context, void* sums,
                   const std::function<void(unsigned blocks)>& launch);
// The bytes of the sums: those of all units, up to max_sums_bytes or else one unit. A sub-problem
// never takes more.
int64_t sums_bytes(const InFlight& work);

}  // namespace tiled::cuda
