#include "binding/stream.h"

#include "binding/run.h"
#include "core/error.h"
#include "core/product.h"

namespace tiled {

void multiply_into_(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                    const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                    const std::string& activation, const std::string& algorithm,
                    const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, c);
  const OpEpilogue epilogue =
      make_linear_epilogue(options.op, {"a", a}, {"b", b}, product, bias, activation);
  PreparedOperand prepared;
  if (hi_lo.numel() > 0 || inverse_scales.numel() > 0) {
    prepared = prepared_operand(options.op, {"b", b}, product, hi_lo, inverse_scales);
  }
  run(options, product, a, c, epilogue, prepared);
}

void activate_(const Tensor& x, const std::string& activation) {
  static const std::string algorithm = "naive";
  const Options options = make_options("tiled::_activate_", algorithm, "fp32");
  check_operands(options.op, {"x", x}, {"x", x});
  if (x.dim() != 2) fail(options.op, "x is " + shape_of(x) + "; it must be a matrix");
  // A product of K = 0 adds -0 to x, which is x.
  Strided a = readable(x), b = a;
  a.sizes[1] = b.sizes[0] = 0;
  const Product product = make_product(options.op, a, b);
  OpEpilogue epilogue =
      make_linear_epilogue(options.op, {"x", x}, {"x", x}, product, {}, activation);
  epilogue.alpha = -0.0;
  epilogue.beta = 1;
  run(options, product, x, x, epilogue);
}

void add_chunk_(const Tensor& sums, const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, sums);
  run(options, product, a, sums, {.beta = 1}, {}, {.kept = true});
}

}  // namespace tiled
