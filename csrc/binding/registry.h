#pragma once
// What Python asks about the kernels and the orders of summation, and the checks of options that it
// makes for tensors without data.

#include <optional>
#include <string>
#include <vector>

namespace tiled {

// Returns the table of kernels and that of orders, as JSON: {"kernels": [..], "orders": [..]}.
std::string registry();

// Makes the checks of an operator's arguments that need no sizes, of those that are given:
// precision and activation; that the dtypes, of one or two operands of these names, have a product;
// that it may have this out_dtype, or be written to an `out` or added to a c of this dtype, and a
// bias of this dtype to it; activation and algorithm with the dtype. Dtypes are named as in Python.
// torch_tiled/_op/checks.py makes them for meta tensors and traced ones, and csrc for others.
void check_options(
    const std::string& op, const std::vector<std::string>& names,
    const std::vector<std::string>& dtypes, const std::optional<std::string>& algorithm,
    const std::optional<std::string>& precision, const std::optional<std::string>& activation,
    const std::optional<std::string>& out_dtype, const std::optional<std::string>& dtype_of_out,
    const std::optional<std::string>& dtype_of_c, const std::optional<std::string>& dtype_of_bias);

}  // namespace tiled
