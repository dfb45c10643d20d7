#include "binding/pointwise.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "binding/run.h"
#include "core/error.h"
#include "core/strided.h"

namespace tiled {
namespace {

constexpr const char* kOp = "tiled::linear";
const std::string kAuto = "auto";

// Moves dimension `from` to the place `to`, and returns the sizes or strides.
Shape moved(Shape x, size_t from, size_t to) {
  const auto first = x.begin();
  if (from < to) {
    std::rotate(first + from, first + from + 1, first + to + 1);
  } else {
    std::rotate(first + to, first + from, first + from + 1);
  }
  return x;
}

Strided moved(Strided x, size_t from, size_t to) {
  x.sizes = moved(x.sizes, from, to);
  x.strides = moved(x.strides, from, to);
  return x;
}

// Makes one dimension of the pixels of (n, c, *sizes), if both tensors' strides allow it.
void flatten_pixels(Strided& x, Strided& y) {
  const auto flat = [](const Strided& z) {
    Strided flat{.data = z.data,
                 .element_size = z.element_size,
                 .sizes = {z.sizes[0], z.sizes[1], 1},
                 .strides = {z.strides[0], z.strides[1], 0},
                 .lazy = z.lazy};
    for (int64_t d = z.rank() - 1; d > 1; --d) {
      if (z.sizes[d] == 1) continue;
      if (flat.sizes[2] == 1) flat.strides[2] = z.strides[d];
      if (z.strides[d] != flat.sizes[2] * flat.strides[2]) return z;
      flat.sizes[2] *= z.sizes[d];
    }
    return flat;
  };
  const Strided flat_x = flat(x), flat_y = flat(y);
  if (flat_x.rank() == 3 && flat_y.rank() == 3) x = flat_x, y = flat_y;
}

}  // namespace

Tensor plain_pointwise(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       bool channels_last) {
  const Options options{kOp, kAuto, Precision::kFp32};
  check_operands(kOp, {"input", input}, {"weight", weight});
  Strided x = readable(input), matrix = readable(weight);
  const auto last = static_cast<size_t>(x.rank() - 1);
  matrix.sizes = {matrix.sizes[0], matrix.sizes[1]};
  matrix.strides = {matrix.strides[0], matrix.strides[1]};
  Shape shape = x.sizes;
  shape[1] = matrix.sizes[0];
  const Shape strides = channels_last ? moved(contiguous_strides(moved(shape, 1, last)), last, 1)
                                      : contiguous_strides(shape);
  const Tensor result = allocate(kOp, shape, input.scalar_type(), input, "result", &strides);
  Strided y = writable(result);
  const int64_t pixels =
      std::accumulate(shape.begin() + 2, shape.end(), int64_t{1}, std::multiplies{});
  const bool by_rows = channels_last || pixels == 1;
  Product product;
  if (by_rows) {
    product = make_linear(kOp, moved(x, 1, last), matrix);
    product.c = moved(y, 1, last);
  } else {
    flatten_pixels(x, y);
    const auto rows = static_cast<size_t>(x.rank() - 2);
    product = make_product(kOp, matrix, moved(x, 1, rows));
    product.c = moved(y, 1, rows);
  }
  const OpEpilogue epilogue = make_linear_epilogue(kOp, {"input", input}, {"weight", weight},
                                                   product, bias, "none", input.scalar_type());
  run(options, product, input, result, epilogue);
  return result;
}

}  // namespace tiled
