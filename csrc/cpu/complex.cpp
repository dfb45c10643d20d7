#include "cpu/complex.h"

#include <algorithm>

#include "core/complex_element.h"
#include "cpu/parallel.h"

namespace tiled::cpu {
namespace {

constexpr int64_t kTile = 32;  // rows and columns that are read and written together

// Calls f.template operator()<T>() with the type of a complex number's parts.
template <typename F>
void with_part_type(DType dtype, F&& f) {
  if (dtype == DType::kFloat64) return f.template operator()<double>();
  f.template operator()<float>();
}

template <typename T>
void pack_tile(const Pack& pack, int64_t matrix, int64_t first_row, int64_t first_col) {
  const auto* from =
      static_cast<const Complex<T>*>(pack.from.data) + batch_offset(pack.batch, pack.from, matrix);
  auto* to = static_cast<Complex<T>*>(pack.to) + matrix * pack.matrix_size();
  for (int64_t row = first_row; row < std::min(pack.rows, first_row + kTile); ++row) {
    for (int64_t col = first_col; col < std::min(pack.cols, first_col + kTile); ++col) {
      const Complex<T> z = from[row * pack.from.row_stride + col * pack.from.col_stride];
      for (int copy = 0; copy < pack.copies; ++copy) {
        to[(row * pack.copies + copy) * pack.to_row_stride + col] =
            packed(z, copy, pack.negated[copy]);
      }
    }
  }
}

}  // namespace

void run_pack(const Pack& pack, const Context& context) {
  const int64_t tiles_down = ceil_div(pack.rows, kTile), tiles_across = ceil_div(pack.cols, kTile);
  with_part_type(pack.dtype, [&]<typename T>() {
    parallel_for(context, pack.batch.count * tiles_down * tiles_across, kTile * kTile,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t tile = begin; tile < end; ++tile) {
                     pack_tile<T>(pack, tile / tiles_across / tiles_down,
                                  tile / tiles_across % tiles_down * kTile,
                                  tile % tiles_across * kTile);
                   }
                 });
  });
}

void run_combine(const Combine& combine, const Context& context) {
  const Problem& p = combine.problem;
  with_part_type(p.dtype, [&]<typename T>() {
    const Scalars<T> scalars(combine.epilogue);
    parallel_for(context, p.batch.count * p.m, static_cast<double>(p.n),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t index = begin; index < end; ++index) {  // a row of C
                     for (int64_t col = 0; col < p.n; ++col) {
                       combine_element<T>(combine, scalars, index / p.m, index % p.m, col);
                     }
                   }
                 });
  });
}

}  // namespace tiled::cpu
