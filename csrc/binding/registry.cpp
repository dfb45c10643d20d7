#include "binding/registry.h"

#include <algorithm>
#include <cstdint>

#include "binding/json.h"
#include "binding/mixed.h"
#include "binding/run.h"
#include "binding/tensors.h"
#include "core/error.h"
#include "select/ladder.h"

namespace tiled {
namespace {

std::string length_or_null(int64_t length) { return length == kAnyLength ? "null" : json(length); }

std::string dtypes_of(const Kernel& kernel) {
  std::vector<std::string> names;
  for (const ScalarType type :
       {ScalarType::Float, ScalarType::ComplexFloat, ScalarType::Double, ScalarType::ComplexDouble,
        ScalarType::Half, ScalarType::BFloat16}) {
    if (has_dtype(kernel.dtypes, *supported(type))) names.push_back(json(dtype_name(type)));
  }
  return json_list(names);
}

ScalarType parse_dtype(const std::string& op, const std::string& name) {
  for (int i = 0; i < static_cast<int>(ScalarType::NumOptions); ++i) {
    const auto type = static_cast<ScalarType>(i);
    if (dtype_name(type) == name) return type;
  }
  fail(op.c_str(), "there is no dtype " + name);
}

}  // namespace

std::string registry() {
  std::vector<std::string> rows, orders;
  for (const Kernel& kernel : kernels()) {
    rows.push_back(json(Fields{
        {"name", json(kernel.name)},
        {"family", json(kernel.family)},
        {"order", json(traits(kernel.order).name)},
        {"dtypes", dtypes_of(kernel)},
        {"needs_hopper", json_bool(kernel.gpus == Gpus::kHopper)},
        {"min_k", json(kernel.min_k)},
        {"max_k", length_or_null(kernel.max_k)},
        {"by_name_only", json_bool(kernel.by_name_only)},
        {"keeps_flagged", json_bool(kernel.keeps_flagged)},
        {"reads_presplit_b", json_bool(kernel.reads_presplit_b)},
        {"reads_complex_b", json_bool(kernel.complex_b.plan != nullptr)},
    }));
  }
  for (const Order order :
       {Order::kPlain, Order::kChunked, Order::kFp16x3, Order::kMma, Order::kTf32}) {
    const OrderTraits& each = traits(order);
    orders.push_back(json(Fields{
        {"name", json(each.name)},
        {"chunk", each.chunk == 0 ? "null" : json(each.chunk)},
        {"min_k", json(each.min_k)},
        {"max_k", length_or_null(each.max_k)},
        {"is_guarded", json_bool(each.is_guarded)},
        {"first_total", json_number(each.first_total)},
    }));
  }
  return json(Fields{{"kernels", json_list(rows)}, {"orders", json_list(orders)}});
}

void check_options(
    const std::string& op_name, const std::vector<std::string>& names,
    const std::vector<std::string>& dtypes, const std::optional<std::string>& algorithm,
    const std::optional<std::string>& precision, const std::optional<std::string>& activation,
    const std::optional<std::string>& out_dtype, const std::optional<std::string>& dtype_of_out,
    const std::optional<std::string>& dtype_of_c, const std::optional<std::string>& dtype_of_bias) {
  const char* op = op_name.c_str();
  std::optional<Precision> parsed_precision;
  std::optional<Activation> parsed_activation;
  if (precision) parsed_precision = parse_precision(op, *precision);
  if (activation) parsed_activation = parse_activation(op, *activation);
  std::vector<NamedDtype> operands;
  for (size_t i = 0; i < std::min(names.size(), dtypes.size()); ++i) {
    operands.push_back({names[i].c_str(), parse_dtype(op_name, dtypes[i])});
  }
  if (operands.empty()) {
    if (algorithm) check_algorithm_name(op, *algorithm);
    return;
  }
  const NamedDtype &a = operands.front(), &b = operands.back();
  check_dtypes(op, a, b);
  std::optional<ScalarType> out;
  if (out_dtype) out = parse_dtype(op_name, *out_dtype);
  out = check_out_dtype(op, a.type, b.type, out);
  if (dtype_of_out) check_dtype_of_out(op, parse_dtype(op_name, *dtype_of_out), a.type, b.type);
  if (dtype_of_c) check_dtype_of_c(op, parse_dtype(op_name, *dtype_of_c), a, b);
  if (dtype_of_bias) check_dtype_of_bias(op, parse_dtype(op_name, *dtype_of_bias), a, b, *out);
  if (activation) check_activation(op, *parsed_activation, *activation, a);
  if (algorithm) {
    const ScalarType type = dtype_of_product(a.type, b.type);
    std::optional<Narrow> narrow;
    if (is_mixed(a.type, b.type)) narrow = narrow_of(a.type, b.type);
    check_algorithm(op, *algorithm, parsed_precision.value_or(Precision::kFp32), *supported(type),
                    is_complex(type), narrow);
  }
}

}  // namespace tiled
