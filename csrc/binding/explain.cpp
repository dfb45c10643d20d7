#include "binding/explain.h"

#include <ranges>
#include <utility>
#include <vector>

#include "binding/json.h"
#include "binding/mixed.h"
#include "binding/run.h"
#include "binding/torch_product.h"
#include "core/error.h"
#include "core/order_fp16x3.h"
#include "select/complex.h"
#include "select/ladder.h"

namespace tiled {
namespace {

const char* layout(const Strided& x) {
  const int64_t row = x.strides[x.rank() - 2], col = x.strides[x.rank() - 1];
  return col == 1 ? "N" : row == 1 ? "T" : "strided";
}

// The bytes of memory that x spans.
int64_t bytes_of(const Strided& x) {
  if (x.empty()) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < x.rank(); ++d) last += (x.sizes[d] - 1) * x.strides[d];
  return (last + 1) * x.element_size;
}

Context hypothetical_context(const char* op, int64_t compute_capability, int64_t sms) {
  if (compute_capability == 0 || sms == 0) {
    fail(op, compute_capability == 0 ? "sms is given without compute_capability; give both"
                                     : "compute_capability is given without sms; give both");
  }
  if (compute_capability < 80 || sms < 1 || sms > 1 << 16) {
    fail(op, "compute_capability is " + std::to_string(compute_capability) + " and sms is " +
                 std::to_string(sms) +
                 "; a GPU has at least 80 (for 8.0) and from 1 to 65536 SMs, such as 90 and 132");
  }
  return {.sms = static_cast<int>(sms), .compute_capability = static_cast<int>(compute_capability)};
}

Fields sizes_of(int64_t m, int64_t n, int64_t k) {
  return {{"m", json(m)}, {"n", json(n)}, {"k", json(k)}};
}

// The chosen kernel, its plan, and the plans of the others.
void append_choice(Fields& fields, const std::vector<Choice>& chosen, const Problem& p,
                   const Context& context) {
  const auto& [kernel, plan] = chosen.front();
  std::vector<std::string> others;
  for (const Choice& other : chosen | std::views::drop(1)) {
    others.push_back(json_list({json(other.kernel->name), json_number(other.plan.cycles)}));
  }
  const OrderTraits& order = traits(kernel->order);
  const int64_t chunk = order.chunk;
  fields.insert(fields.end(), {{"algorithm", json(kernel->name)},
                               {"tile", json_list({json(int64_t{plan.m}), json(int64_t{plan.n})})},
                               {"blocks", json(plan.blocks)},
                               {"k_splits", json(plan.k_splits)},
                               {"sms", json(int64_t{context.sms})},
                               {"cycles", json_number(plan.cycles)},
                               {"others", json_list(others)},
                               {"order", json(order.name)},
                               {"chunk", chunk == 0 ? "null" : json(chunk)},
                               {"chunks", json(chunk == 0 ? int64_t{1} : ceil_div(p.k, chunk))},
                               {"promotion", json(int64_t{fp16x3::promotion(p.k)})},
                               {"is_guarded", json_bool(order.is_guarded)}});
}

}  // namespace

std::string explain_matmul(const Tensor& a, const Tensor& b, const std::string& algorithm,
                           const std::string& precision, int64_t compute_capability, int64_t sms) {
  const Options options = make_options("tiled::explain", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  Product product = make_product(options.op, readable(a), readable(b));
  check_countable(options.op, product);
  const bool mixed = is_mixed(a.scalar_type(), b.scalar_type());
  const ScalarType type = dtype_of_product(a.scalar_type(), b.scalar_type());
  std::string dtypes = dtype_name(a.scalar_type());
  if (mixed) dtypes += " and " + dtype_name(b.scalar_type());
  std::vector<std::string> shape;
  for (const int64_t size : product.shape) shape.push_back(json(size));
  Fields fields = sizes_of(product.m, product.n, product.k);
  fields.insert(fields.end(), {{"shape", json_list(shape)},
                               {"dtype", json(dtypes)},
                               {"precision", json(precision)},
                               {"a_layout", json(layout(product.a))},
                               {"b_layout", json(layout(product.b))}});
  const bool hypothetical = compute_capability != 0 || sms != 0;
  if (!hypothetical && is_torch_product(a, b, options)) {
    fields.emplace_back("algorithm", json("torch.matmul"));
    return json(fields);
  }
  const bool complex = is_complex(type);
  ComplexProblem z = make_complex_problem(options, product, type);
  const Strided c{
      .element_size = 1, .sizes = product.shape, .strides = contiguous_strides(product.shape)};
  auto outer = lay_out_batch(product.a, product.b, product.matrices(c), nullptr, z.problem);
  const Context context = hypothetical ? hypothetical_context(options.op, compute_capability, sms)
                                       : make_context(options.op, a);
  std::vector<Choice> chosen;
  if (mixed) {
    int64_t a_bytes = 0, b_bytes = 0;
    check_mixed(options, a.scalar_type(), b.scalar_type());
    const Narrow narrow = narrow_of(a.scalar_type(), b.scalar_type());
    if (!context.on_host() && outer.empty()) {
      chosen = mixed_choices(algorithm, z.problem, narrow, context);
    }
    const bool in_place =
        !chosen.empty() && chosen.front().kernel->mixed.in_place(z.problem, narrow);
    if (!in_place) {
      Strided& upcast = narrow.is_a ? product.a : product.b;
      upcast = upcast_layout(upcast);
      (narrow.is_a ? a_bytes : b_bytes) = bytes_of(upcast);
      z = make_complex_problem(options, product, type);
      lay_out_batch(product.a, product.b, product.matrices(c), nullptr, z.problem);
      chosen.clear();
    }
    fields.insert(fields.end(), {{"reads_operands", json_bool(!c.empty() && product.k > 0)},
                                 {"a_pass_bytes", json(a_bytes)},
                                 {"b_pass_bytes", json(b_bytes)}});
  }
  Problem p = z.problem;
  if (complex) {
    ComplexPlan plan = plan_complex(algorithm, z, context);
    p = plan.real.problem;
    // A pass writes an operand to so many bytes, or it is read in place. A size of 0 leaves nothing
    // to read.
    const int64_t a_bytes = plan.reads_a_in_place ? 0 : plan.real.a_bytes;
    const int64_t b_bytes = plan.reads_b_in_place ? 0 : plan.real.b_bytes;
    chosen = std::move(plan.choices);
    fields.insert(fields.end(), {{"real_product", json(sizes_of(p.m, p.n, p.k))},
                                 {"reads_operands", json_bool(!c.empty() && product.k > 0)},
                                 {"a_pass_bytes", json(a_bytes)},
                                 {"b_pass_bytes", json(b_bytes)}});
  } else if (chosen.empty()) {
    chosen = choices(algorithm, p, context);
  }
  append_choice(fields, chosen, p, context);
  if (!hypothetical && traits(chosen.front().kernel->order).is_guarded) {  // the product can tell
    const Tensor result = allocate(options.op, product.shape, type, a);
    const Tensor wide_a = mixed ? upcast(options.op, a) : a;
    const Tensor wide_b = mixed ? upcast(options.op, b) : b;
    if (mixed) product = make_product(options.op, readable(wide_a), readable(wide_b));
    int64_t recomputed = 0;
    run(options, product, wide_a, result, {}, {}, {.recomputed = &recomputed});
    fields.emplace_back("recomputed", json(recomputed));
    fields.emplace_back("sums", json((complex ? 2 : 1) * result.numel()));
  }
  return json(fields);
}

}  // namespace tiled
