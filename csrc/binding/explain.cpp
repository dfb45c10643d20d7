#include "binding/explain.h"

#include <utility>

#include "binding/run.h"
#include "binding/torch_product.h"
#include "core/error.h"
#include "select/complex.h"
#include "select/ladder.h"

namespace tiled {
namespace {

const char* layout(const Strided& x) {
  const int64_t row = x.strides[x.rank() - 2], col = x.strides[x.rank() - 1];
  return col == 1 ? "N" : row == 1 ? "T" : "strided";
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

// How a complex product reads an operand: a size of 0 leaves nothing to read.
std::string reading(bool is_read, bool in_place, int64_t packed_bytes) {
  if (!is_read) return "not at all";
  if (in_place) return "as it lies";
  return "in " + std::to_string(packed_bytes) + " bytes, to which a pass writes it";
}

}  // namespace

std::vector<std::string> explain_matmul(const Tensor& a, const Tensor& b,
                                        const std::string& algorithm, const std::string& precision,
                                        int64_t compute_capability, int64_t sms) {
  const Options options = make_options("tiled::explain", algorithm, precision);
  check_operands(options.op, {"a", a}, {"b", b});
  const Product product = make_product(options.op, readable(a), readable(b));
  check_countable(options.op, product);
  std::vector<std::string> lines{
      "problem",
      "m = " + std::to_string(product.m) + ", n = " + std::to_string(product.n) +
          ", k = " + std::to_string(product.k) + ", result " + to_string(product.shape),
      "dtype",
      dtype_name(a.scalar_type()) + ", precision " + precision,
      "layout",
      std::string("a ") + layout(product.a) + ", b " + layout(product.b)};
  const bool hypothetical = compute_capability != 0 || sms != 0;
  if (!hypothetical && is_torch_product(a, b, options)) {
    lines.insert(lines.end(),
                 {"algorithm", "torch.matmul", "why", "on the CPU auto is PyTorch's own product"});
    return lines;
  }
  const bool complex = is_complex(a.scalar_type());
  ComplexProblem z = make_complex_problem(options, product, a.scalar_type());
  const Strided c{
      .element_size = 1, .sizes = product.shape, .strides = contiguous_strides(product.shape)};
  lay_out_batch(product.a, product.b, product.matrices(c), nullptr, z.problem);
  const Context context = hypothetical ? hypothetical_context(options.op, compute_capability, sms)
                                       : make_context(options.op, a);
  Problem p = z.problem;
  std::vector<Choice> chosen;
  if (complex) {
    ComplexPlan plan = plan_complex(algorithm, z, context);
    p = plan.real.problem;
    chosen = std::move(plan.choices);
    const bool is_read = !c.empty() && product.k > 0;
    lines.insert(lines.end(),
                 {"real_product",
                  "m = " + std::to_string(p.m) + ", n = " + std::to_string(p.n) +
                      ", k = " + std::to_string(p.k),
                  "a_is_read", reading(is_read, !plan.real.pack_a, plan.real.a_bytes), "b_is_read",
                  reading(is_read, plan.reads_b_in_place, plan.real.b_bytes)});
  } else {
    chosen = choices(algorithm, p, context);
  }
  for (auto& [heading, text] : explain(chosen, p, context)) {
    lines.insert(lines.end(), {std::move(heading), std::move(text)});
  }
  if (!hypothetical && is_guarded(chosen.front().kernel->order)) {  // the product itself can tell
    const Tensor result = allocate(options.op, product.shape, a.scalar_type(), a);
    int64_t recomputed = 0;
    run(options, product, a, result, {}, {}, {.recomputed = &recomputed});
    lines.insert(lines.end(),
                 {"recomputed", std::to_string(recomputed) + " of " +
                                    std::to_string((complex ? 2 : 1) * result.numel()) +
                                    (complex ? " parts" : " elements")});
  }
  return lines;
}

}  // namespace tiled
