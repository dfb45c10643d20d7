#include "binding/stream.h"

#include <algorithm>
#include <array>

#include "binding/run.h"
#include "core/complex.h"
#include "core/error.h"
#include "core/product.h"
#include "select/complex.h"
#include "select/ladder.h"

namespace tiled {
namespace {

// A matrix of a batch, with rows that begin at cache lines; transposed if it is not row-major.
Matrix make_panel(int64_t rows, int64_t cols, bool row_major) {
  constexpr int64_t kPitch = 64;
  const auto pitch = [](int64_t length) { return ceil_div(length, kPitch) * kPitch; };
  Matrix panel{.row_stride = row_major ? pitch(cols) : 1,
               .col_stride = row_major ? 1 : pitch(rows)};
  panel.batch_stride[0] = row_major ? rows * pitch(cols) : cols * pitch(rows);
  return panel;
}

// The first choice for a problem, and what its launch and the passes around it allocate.
struct Cost {
  Choice choice;
  std::array<int64_t, 5> bytes{};
};

Cost cost_of(const std::string& algorithm, const ComplexProblem& z, bool complex,
             const Context& context) {
  if (!complex) {
    Cost cost{.choice = choices(algorithm, z.problem, context).front()};
    const auto [first, second] =
        cost.choice.kernel->workspace(z.problem, cost.choice.plan, context.sms);
    cost.bytes = {first, second};
    return cost;
  }
  const ComplexPlan plan = plan_complex(algorithm, z, context);
  const RealProblem& real = plan.real;
  Cost cost{.choice = plan.choices.front()};
  const Kernel& kernel = *cost.choice.kernel;
  const auto [first, second] = kernel.workspace(real.problem, cost.choice.plan, context.sms);
  const bool packs_b = !plan.reads_b_in_place || kernel.complex_b.needs_pack;
  cost.bytes = {first, second, real.a_bytes, packs_b ? real.b_bytes : 0, real.sum_bytes};
  return cost;
}

}  // namespace

std::tuple<std::string, double, std::vector<int64_t>> cost_of_panels(
    ScalarType dtype, const std::string& algorithm, const std::string& precision,
    const std::vector<int64_t>& sizes, bool prepared, bool keeps_flagged,
    int64_t compute_capability, int64_t sms) {
  alignas(16) static uint8_t never_read[16];
  const char* op = "tiled::_cost_of_panels";
  const Context context{.sms = static_cast<int>(sms),
                        .compute_capability = static_cast<int>(compute_capability)};
  ComplexProblem z;
  Problem& p = z.problem;
  p.op = op, p.dtype = *supported(dtype), p.out_dtype = p.dtype;
  p.precision = parse_precision(op, precision);
  p.keeps_flagged = keeps_flagged;
  const int64_t matrices = sizes.at(0);
  p.m = sizes.at(1), p.n = sizes.at(2), p.k = sizes.at(3);
  if (matrices > 1) p.batch = {.rank = 1, .count = matrices, .size = {matrices}};
  p.c.row_stride = p.n, p.c.col_stride = 1, p.c.batch_stride[0] = p.m * p.n;
  if (prepared) {
    p.b_presplit = presplit_columns(dtype, p.k, p.n);
    p.b_presplit.hi_lo = never_read;
    z.prepared_b = is_complex(dtype) ? never_read : nullptr;
  }
  std::vector<int64_t> bytes(std::tuple_size_v<decltype(Cost::bytes)>);
  std::optional<Choice> row_major;
  for (const bool a_row_major : {true, false}) {
    for (const bool b_row_major : {true, false}) {
      p.a = make_panel(p.m, p.k, a_row_major), p.b = make_panel(p.k, p.n, b_row_major);
      const Cost cost = cost_of(algorithm, z, is_complex(dtype), context);
      if (!row_major) row_major = cost.choice;
      std::ranges::transform(bytes, cost.bytes, bytes.begin(),
                             [](int64_t x, int64_t y) { return std::max(x, y); });
    }
  }
  std::erase(bytes, 0);
  return {std::string(row_major->kernel->name), row_major->plan.cycles, bytes};
}

void multiply_into_(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& hi_lo,
                    const Tensor& inverse_scales, const std::optional<Tensor>& bias,
                    const std::string& activation, const std::string& algorithm,
                    const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, c);
  check_same_dtype(options.op, {"a", a}, {"b", b});
  const OpEpilogue epilogue = make_linear_epilogue(options.op, {"a", a}, {"b", b}, product, bias,
                                                   activation, a.scalar_type());
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
  OpEpilogue epilogue = make_linear_epilogue(options.op, {"x", x}, {"x", x}, product, {},
                                             activation, x.scalar_type());
  epilogue.alpha = -0.0;
  epilogue.beta = 1;
  run(options, product, x, x, epilogue);
}

void add_chunk_(const Tensor& sums, const Tensor& a, const Tensor& b, const std::string& algorithm,
                const std::string& precision) {
  const Options options = make_options("tiled::matmul", algorithm, precision);
  const Product product = make_product_into(options.op, a, b, sums);
  check_same_dtype(options.op, {"a", a}, {"b", b});
  run(options, product, a, sums, {.beta = 1}, {}, {.kept = true});
}

}  // namespace tiled
