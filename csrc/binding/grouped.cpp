#include "binding/grouped.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "binding/mixed.h"
#include "binding/ops.h"
#include "binding/run.h"
#include "core/error.h"
#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/grouped/launch.h"
#endif

namespace tiled {
namespace {

using torch::stable::narrow;
using torch::stable::select;
using torch::stable::unsqueeze;

constexpr const char* kOp = "tiled::grouped_mm";
const std::string kAuto = "auto";

// The sizes of a grouped product. A plain batch has the side kNone.
struct Sizes {
  GroupedSide side;
  int64_t groups, m, n, k;

  int64_t length() const { return side == GroupedSide::kM ? m : side == GroupedSide::kN ? n : k; }
  Shape shape() const {
    const bool is_batch = side == GroupedSide::kNone || side == GroupedSide::kK;
    return is_batch ? Shape{groups, m, n} : Shape{m, n};
  }
};

// --- checks, which torch_tiled/_op/checks.py makes for tensors without data ----------------------

Sizes check_shapes(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs) {
  const auto refuse = [&](const std::string& reason) {
    fail(kOp, "a is " + shape_of(a) + " and b is " + shape_of(b) + "; " + reason);
  };
  const int64_t a_rank = a.dim(), b_rank = b.dim();
  if (std::min(a_rank, b_rank) < 2 || std::max(a_rank, b_rank) > 3) {
    refuse("each must have 2 or 3 dimensions");
  }
  const bool cuts_a = a_rank == 2, cuts_b = b_rank == 2;
  if (a.size(a_rank - 1) != b.size(b_rank - 2)) refuse("a's columns must equal b's rows");
  Sizes sizes{.side = cuts_a && cuts_b ? GroupedSide::kK
                      : cuts_a         ? GroupedSide::kM
                      : cuts_b         ? GroupedSide::kN
                                       : GroupedSide::kNone,
              .groups = 0,
              .m = a.size(a_rank - 2),
              .n = b.size(b_rank - 1),
              .k = a.size(a_rank - 1)};
  if (sizes.side == GroupedSide::kNone) {
    if (a.size(0) != b.size(0)) refuse("they must have as many matrices");
    if (offs) refuse("offs cuts a matrix, and both are batches; pass no offs");
    sizes.groups = a.size(0);
    return sizes;
  }
  if (!offs) refuse("pass offs, the end of each group");
  check_same_device(kOp, {"offs", *offs}, {"a", a});
  if (offs->scalar_type() != ScalarType::Int) {
    fail(kOp, "offs is " + dtype_name(offs->scalar_type()) +
                  "; it must be torch.int32, for example by .to(torch.int32)");
  }
  if (offs->dim() != 1) fail(kOp, "offs is " + shape_of(*offs) + "; it must be (groups,)");
  sizes.groups = offs->size(0);
  const int64_t matrices = !cuts_a ? a.size(0) : !cuts_b ? b.size(0) : sizes.groups;
  if (matrices != sizes.groups) {
    refuse("offs is " + shape_of(*offs) + ", and it must have an end for each matrix");
  }
  if (std::max(sizes.length(), sizes.groups) > std::numeric_limits<int32_t>::max()) {
    refuse("offs is " + shape_of(*offs) + ", and 32 bits count at most 2**31 - 1");
  }
  return sizes;
}

void check_bias(const Tensor& bias, const Sizes& sizes, const Tensor& a, const Tensor& b,
                ScalarType out) {
  check_same_device(kOp, {"bias", bias}, {"a", a});
  check_dtype_of_bias(kOp, bias.scalar_type(), Named{"a", a}, Named{"b", b}, out);
  if (sizes.side == GroupedSide::kN) {
    fail(kOp, "bias is " + shape_of(bias) +
                  " and b is cut by columns, of which groups have different ones; add it to the "
                  "result");
  }
  const Shape shape(bias.sizes().begin(), bias.sizes().end());
  const bool is_row = shape.size() == 1 && shape[0] == sizes.n;
  const bool has_rows = shape.size() == 2 && shape[0] == sizes.groups && shape[1] == sizes.n;
  if (is_row || has_rows) return;
  fail(kOp, "bias is " + shape_of(bias) + "; it must be " + to_string(Shape{sizes.n}) +
                " for all groups, or " + to_string(Shape{sizes.groups, sizes.n}));
}

// --- on the CPU ----------------------------------------------------------------------------------

// Where groups begin and end, from 0 on: one more than there are groups.
std::vector<int64_t> read_ends(const Tensor& offs, int64_t length) {
  const auto* ends = static_cast<const int32_t*>(data_of(offs));
  std::vector<int64_t> all{0};
  for (int64_t g = 0; g < offs.size(0); ++g) {
    const int64_t end = ends[g * offs.stride(0)];
    if (end < all.back() || end > length) {
      fail(kOp, "offs[" + std::to_string(g) + "] is " + std::to_string(end) +
                    "; it must be at least " + std::to_string(all.back()) +
                    ", the end of the group before, and at most the length " +
                    std::to_string(length));
    }
    all.push_back(end);
  }
  return all;
}

void multiply_group(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, Tensor c,
                    const std::string& precision) {
  if (!bias) return matmul_out(a, b, kAuto, precision, c);
  const Tensor weight = torch::stable::transpose(b, 0, 1);
  torch::stable::copy_(c, linear(a, weight, bias, "none", kAuto, precision, c.scalar_type()));
}

Tensor multiply_on_cpu(const Sizes& sizes, const Tensor& a, const Tensor& b, const Tensor& offs,
                       const std::optional<Tensor>& bias, ScalarType out,
                       const std::string& precision) {
  const int64_t length = sizes.length();
  const std::vector<int64_t> ends = read_ends(offs, length);
  const Tensor c = allocate(kOp, sizes.shape(), out, a);
  // An operand's group, or C's: a matrix of a batch, or a part of a matrix.
  const auto part = [&](const Tensor& x, int64_t dim, int64_t group) {
    if (x.dim() == 3) return select(x, 0, group);
    return narrow(const_cast<Tensor&>(x), dim, ends[group], ends[group + 1] - ends[group]);
  };
  const bool cuts_k = sizes.side == GroupedSide::kK;
  const int64_t cut = sizes.side == GroupedSide::kM ? 0 : 1;  // of C
  for (int64_t g = 0; g < sizes.groups; ++g) {
    if (!cuts_k && ends[g] == ends[g + 1]) continue;
    std::optional<Tensor> row;
    if (bias) row = bias->dim() == 2 ? select(*bias, 0, g) : *bias;
    multiply_group(part(a, cuts_k ? 1 : 0, g), part(b, cuts_k ? 0 : 1, g), row, part(c, cut, g),
                   precision);
  }
  if (!cuts_k && ends.back() < length) {
    Tensor all = c;
    Tensor rest = narrow(all, cut, ends.back(), length - ends.back());
    torch::stable::zero_(rest);
  }
  return c;
}

// --- on a GPU ------------------------------------------------------------------------------------

#ifdef TORCH_TILED_WITH_CUDA

// What a launch reads; it is not mixed.
struct Operands {
  Strided a, b;
  const Tensor& offs;
  const Tensor* bias;  // of the operands' dtype, or null
};

Tensor zeros(const Sizes& sizes, ScalarType dtype, const Tensor& like) {
  Tensor c = allocate(kOp, sizes.shape(), dtype, like);
  torch::stable::zero_(c);
  return c;
}

template <class Void>
MatrixOf<Void> grouped_matrix(Void* data, const Strided& x) {
  MatrixOf<Void> matrix{
      .data = data, .row_stride = x.strides[x.rank() - 2], .col_stride = x.strides[x.rank() - 1]};
  if (x.rank() == 3 && x.sizes[0] > 1) matrix.batch_stride[0] = x.strides[0];
  return matrix;
}

void launch(Precision precision, const Sizes& sizes, const Operands& operands, ScalarType dtype,
            const Tensor& c) {
  Launches launches(kOp, c);
  Product product;
  product.m = sizes.m, product.n = sizes.n, product.k = sizes.k;
  Problem p = make_problem({kOp, kAuto, precision}, product, dtype, c.scalar_type());
  p.batch = {.rank = 1, .count = sizes.groups, .size = {sizes.groups}};
  p.a = grouped_matrix(operands.a.data, operands.a);
  p.b = grouped_matrix(operands.b.data, operands.b);
  const Strided written = writable(c);
  p.c = grouped_matrix(c.mutable_data_ptr(), written);
  if (const Tensor* bias = operands.bias) {
    p.epilogue.bias = data_of(*bias);
    p.epilogue.bias_stride = bias->stride(bias->dim() - 1);
    p.epilogue.bias_batch_stride = bias->dim() == 2 ? bias->stride(0) : 0;
  }
  const Tensor& offs = operands.offs;
  const Tensor ends = offs.is_contiguous() ? offs : torch::stable::contiguous(offs);
  p.groups = {.side = sizes.side, .ends = static_cast<const int32_t*>(data_of(ends))};
  if (!cuda::launch_grouped(p, launches.context)) launches.fail_for_memory();
}

// Returns what a bias adds to each element of C: its rows, and zeros in rows that no group has. It
// is the product of a column of ones by the bias.
Tensor rows_of_bias(const Sizes& sizes, const Tensor& offs, const Tensor& bias, ScalarType dtype) {
  Tensor one = allocate(kOp, {1}, bias.scalar_type(), bias);
  torch::stable::fill_(one, 1);
  const Tensor c = allocate(kOp, sizes.shape(), dtype, bias);
  Sizes outer = sizes;
  outer.k = 1;
  const Strided row = readable(bias);
  const bool has_rows = row.rank() == 2;
  Operands operands{.a = readable(one), .b = row, .offs = offs, .bias = nullptr};
  operands.a.sizes = {sizes.m, 1};
  operands.a.strides = {0, 0};
  operands.b.sizes = {sizes.groups, 1, sizes.n};
  operands.b.strides = {has_rows ? row.strides[0] : 0, 0, row.strides.back()};
  launch(Precision::kIeee, outer, operands, bias.scalar_type(), c);
  return c;
}

Tensor multiply_on_gpu(Precision precision, const Sizes& sizes, const Tensor& a, const Tensor& b,
                       const Tensor& offs, const std::optional<Tensor>& bias, ScalarType out) {
  const bool is_empty = sizes.groups == 0 || sizes.m == 0 || sizes.n == 0;
  if (is_empty || (sizes.k == 0 && !bias)) return zeros(sizes, out, a);
  const bool cuts_k = sizes.side == GroupedSide::kK;
  // A float32 bias beside 16-bit operands, which kernels do not read, and sums of nothing.
  const bool adds_bias = bias && (sizes.k == 0 || bias->scalar_type() != a.scalar_type());
  if (!adds_bias) {
    const Tensor c = allocate(kOp, sizes.shape(), out, a);
    launch(precision, sizes, {readable(a), readable(b), offs, bias ? &*bias : nullptr},
           a.scalar_type(), c);
    return c;
  }
  const Tensor sums = multiply_on_gpu(precision, sizes, a, b, offs, {}, out);
  if (cuts_k) {
    return torch::stable::subtract(sums, bias->dim() == 2 ? unsqueeze(*bias, 1) : *bias, -1);
  }
  const Tensor rows = rows_of_bias(sizes, offs, *bias, out);
  return sizes.k == 0 ? rows : torch::stable::subtract(sums, rows, -1);
}

#endif

// --- on both -------------------------------------------------------------------------------------

// Returns a batch's product, with a bias or without.
Tensor multiply_batch(const Sizes& sizes, const Tensor& a, const Tensor& b,
                      const std::optional<Tensor>& bias, ScalarType out,
                      const std::string& precision) {
  if (!bias) return matmul(a, b, kAuto, precision, out);
  const bool is_mixed_batch = is_mixed(a.scalar_type(), b.scalar_type());
  Tensor c = allocate(kOp, sizes.shape(), is_mixed_batch ? ScalarType::Float : out, a);
  torch::stable::copy_(c, bias->dim() == 2 ? unsqueeze(*bias, 1) : *bias);
  gemm_(c, a, b, 1, 1, kAuto, precision, 0, 0);
  return rounded(kOp, c, out);
}

}  // namespace

Tensor grouped_mm(const Tensor& a, const Tensor& b, const std::optional<Tensor>& offs,
                  const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype,
                  const std::string& precision) {
  [[maybe_unused]] const Precision parsed = parse_precision(kOp, precision);
  check_operands(kOp, {"a", a}, {"b", b});
  if (is_complex(a.scalar_type())) check_dtype(kOp, {"a", a});
  const ScalarType out = check_out_dtype(kOp, a.scalar_type(), b.scalar_type(), out_dtype);
  const Sizes sizes = check_shapes(a, b, offs);
  if (bias) check_bias(*bias, sizes, a, b, out);
  if (sizes.side == GroupedSide::kNone) return multiply_batch(sizes, a, b, bias, out, precision);
  if (is_mixed(a.scalar_type(), b.scalar_type())) {
    std::optional<Tensor> wide_bias;
    if (bias) wide_bias = upcast(kOp, *bias);
    const Tensor wide_a = upcast(kOp, a), wide_b = upcast(kOp, b);
    return rounded(kOp, grouped_mm(wide_a, wide_b, offs, wide_bias, {}, precision), out);
  }
#ifdef TORCH_TILED_WITH_CUDA
  if (a.is_cuda()) return multiply_on_gpu(parsed, sizes, a, b, *offs, bias, out);
#else
  if (a.is_cuda()) make_context(kOp, a);  // fails with a sentence
#endif
  return multiply_on_cpu(sizes, a, b, *offs, bias, out, precision);
}

}  // namespace tiled
