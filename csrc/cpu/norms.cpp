// Norms of rows on the CPU, in the order of core/order_rows.h.
//
// Rows are widened to the accumulator's type first, so that the inner loops, which are functions of
// their own for SIMD, are loops over arrays of one type.

#include "cpu/norms.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/element.h"
#include "core/order_rows.h"
#include "cpu/parallel.h"
#include "cpu/rows_sum.h"
#include "cpu/simd.h"

namespace tiled::cpu {
namespace {

constexpr double kOperations = 8;  // of an element, about

// --- Inner loops ---------------------------------------------------------------------------------

template <typename T>
SIMD void widen_row(const T* x, int64_t count, accumulator_t<T>* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = widen(x[i]);
}

// x becomes (x - mean) * inverse.
template <typename A>
SIMD void shift_and_scale(A* x, int64_t count, A mean, A inverse) {
  for (int64_t i = 0; i < count; ++i) x[i] = (x[i] - mean) * inverse;
}

template <typename A>
SIMD void multiply_by(A* x, const A* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= y[i];
}

template <typename T, typename A = accumulator_t<T>>
SIMD void store_normalized(const A* deviations, int64_t count, A inverse, const A* weight,
                           const A* bias, T* y) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] = narrow<T>(rows::normalized(deviations[i], inverse, weight[i], bias[i]));
  }
}

template <typename T, typename A = accumulator_t<T>>
SIMD void store_gradients(const A* g, const A* h, int64_t count, A mean_g, A mean_gh, A inverse,
                          T* dx) {
  for (int64_t i = 0; i < count; ++i) {
    dx[i] = narrow<T>(rows::norm_gradient(g[i], h[i], mean_g, mean_gh, inverse));
  }
}

// --- Rows ----------------------------------------------------------------------------------------

// Returns a weight or a bias as accumulators; `none` in each column if there is none.
template <typename T, typename A = accumulator_t<T>>
std::vector<A> read_params(const void* params, int64_t columns, bool is_wide, A none) {
  std::vector<A> read(columns, none);
  if (params == nullptr) return read;
  if (is_wide) {
    std::copy_n(static_cast<const float*>(params), columns, read.data());
  } else {
    widen_row(static_cast<const T*>(params), columns, read.data());
  }
  return read;
}

template <typename T>
void normalize_rows(const NormProblem& p, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  const auto weight = read_params<T>(p.weight, p.columns, p.wide_params, rows::kNoWeight<A>);
  const auto bias = read_params<T>(p.bias, p.columns, p.wide_params, rows::kNoBias<A>);
  std::vector<A> x(p.columns);
  for (int64_t row = begin; row < end; ++row) {
    widen_row(static_cast<const T*>(p.x.data) + row * p.x.pitch, p.columns, x.data());
    if (p.centered) {
      const A mean = rows::mean_of(sum_terms(x.data(), p.columns), p.columns);
      static_cast<A*>(p.mean)[row] = mean;
      shift_and_scale(x.data(), p.columns, mean, A(1));
    }
    const A inverse =
        rows::inverse_of(sum_products(x.data(), x.data(), p.columns), p.columns, p.eps);
    static_cast<A*>(p.inverse)[row] = inverse;
    store_normalized(x.data(), p.columns, inverse, weight.data(), bias.data(),
                     static_cast<T*>(p.y) + row * p.columns);
  }
}

template <typename T>
void find_dx(const NormBackward& p, int64_t begin, int64_t end) {
  using A = accumulator_t<T>;
  const auto weight = read_params<T>(p.weight, p.columns, p.wide_params, rows::kNoWeight<A>);
  std::vector<A> g(p.columns), h(p.columns);
  for (int64_t row = begin; row < end; ++row) {
    const A mean = p.mean == nullptr ? A(0) : static_cast<const A*>(p.mean)[row];
    const A inverse = static_cast<const A*>(p.inverse)[row];
    widen_row(static_cast<const T*>(p.dy.data) + row * p.dy.pitch, p.columns, g.data());
    widen_row(static_cast<const T*>(p.x.data) + row * p.x.pitch, p.columns, h.data());
    multiply_by(g.data(), weight.data(), p.columns);
    shift_and_scale(h.data(), p.columns, mean, inverse);
    const A mean_g =
        p.mean == nullptr ? A(0) : rows::mean_of(sum_terms(g.data(), p.columns), p.columns);
    const A mean_gh = rows::mean_of(sum_products(g.data(), h.data(), p.columns), p.columns);
    store_gradients(g.data(), h.data(), p.columns, mean_g, mean_gh, inverse,
                    static_cast<T*>(p.dx) + row * p.columns);
  }
}

// --- Columns -------------------------------------------------------------------------------------

constexpr int64_t kColumns = 64;  // that a thread sums at once

// A part's sums of columns, for each part.
template <typename A>
using PartsOfColumns = std::array<A[kColumns], rows::kParts>;

// Replaces the sums of part 0 by those of all parts.
template <typename A>
void join_parts(PartsOfColumns<A>& parts) {
  for (int width = rows::kParts / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) add_terms(parts[j + width], kColumns, parts[j]);
  }
}

// The sums of a chunk of rows, for up to kColumns columns.
template <typename T>
void sum_columns(const NormBackward& p, int64_t chunk, int64_t first, accumulator_t<T>* of_weight,
                 accumulator_t<T>* of_bias) {
  using A = accumulator_t<T>;
  const int64_t count = std::min(kColumns, p.columns - first);
  const int64_t end = std::min((chunk + 1) * rows::kChunk, p.rows);
  A dy[kColumns], h[kColumns];
  PartsOfColumns<A> weight_sums = {}, bias_sums = {};
  for (int64_t row = chunk * rows::kChunk; row < end; ++row) {
    const int64_t part = row % rows::kParts;
    widen_row(static_cast<const T*>(p.dy.data) + row * p.dy.pitch + first, count, dy);
    if (p.dbias != nullptr) add_terms(dy, count, bias_sums[part]);
    if (p.dweight == nullptr) continue;
    const A mean = p.mean == nullptr ? A(0) : static_cast<const A*>(p.mean)[row];
    widen_row(static_cast<const T*>(p.x.data) + row * p.x.pitch + first, count, h);
    shift_and_scale(h, count, mean, static_cast<const A*>(p.inverse)[row]);
    add_products(dy, h, count, weight_sums[part]);
  }
  join_parts(weight_sums), join_parts(bias_sums);
  if (p.dweight != nullptr) std::copy_n(weight_sums[0], count, of_weight + first);
  if (p.dbias != nullptr) std::copy_n(bias_sums[0], count, of_bias + first);
}

// Adds the sums of chunks, (chunks, columns), and stores them.
template <typename T, typename A = accumulator_t<T>>
void store_columns(const NormBackward& p, const std::vector<A>& parts, void* to) {
  if (to == nullptr) return;
  std::vector<A> sums(p.columns);
  for (auto part = parts.begin(); part != parts.end(); part += p.columns) {
    add_terms(&*part, p.columns, sums.data());
  }
  for (int64_t i = 0; i < p.columns; ++i) {
    if (p.wide_params) {
      static_cast<float*>(to)[i] = static_cast<float>(sums[i]);  // it is a float
    } else {
      static_cast<T*>(to)[i] = narrow<T>(sums[i]);
    }
  }
}

template <typename T>
void find_columns(const NormBackward& p, const Context& context) {
  using A = accumulator_t<T>;
  const int64_t chunks = ceil_div(p.rows, rows::kChunk), tiles = ceil_div(p.columns, kColumns);
  std::vector<A> of_weight(p.dweight == nullptr ? 0 : chunks * p.columns);
  std::vector<A> of_bias(p.dbias == nullptr ? 0 : chunks * p.columns);
  const double operations = kOperations * static_cast<double>(std::min(p.columns, kColumns)) *
                            static_cast<double>(std::min<int64_t>(p.rows, rows::kChunk));
  parallel_for(context, chunks * tiles, operations, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t chunk = index / tiles, first = index % tiles * kColumns;
      sum_columns<T>(p, chunk, first, of_weight.data() + chunk * p.columns,
                     of_bias.data() + chunk * p.columns);
    }
  });
  store_columns<T>(p, of_weight, p.dweight);
  store_columns<T>(p, of_bias, p.dbias);
}

}  // namespace

void launch_norm(const NormProblem& p, const Context& context) {
  const double operations = kOperations * static_cast<double>(p.columns);
  with_element_type(p.dtype, [&]<typename T>() {
    parallel_for(context, p.rows, operations,
                 [&](int64_t begin, int64_t end) { normalize_rows<T>(p, begin, end); });
  });
}

void launch_norm_backward(const NormBackward& p, const Context& context) {
  const double operations = kOperations * static_cast<double>(p.columns);
  with_element_type(p.dtype, [&]<typename T>() {
    if (p.dx != nullptr) {
      parallel_for(context, p.rows, operations,
                   [&](int64_t begin, int64_t end) { find_dx<T>(p, begin, end); });
    }
    if (p.needs_columns()) find_columns<T>(p, context);
  });
}

}  // namespace tiled::cpu
