#include "binding/attention.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>

#include "binding/run.h"
#include "core/attention.h"
#include "core/error.h"
#include "cpu/attention.h"
#ifdef TORCH_TILED_WITH_CUDA
#include "kernels/attention/launch.h"
#endif

namespace tiled {
namespace {

constexpr const char* kOp = "tiled::attention";

// --- checks, which torch_tiled/_op/checks.py makes for tensors without data ----------------------

void check_types(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const Named& x : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    check_same_device(kOp, x, {"q", q});
    const ScalarType type = x.tensor.scalar_type();
    if (type != ScalarType::Float && !is_16bit(type)) {
      fail(kOp, std::string(x.name) + " is " + dtype_name(type) +
                    "; q, k and v must be torch.float32, torch.bfloat16 or torch.float16");
    }
    if (type != q.scalar_type()) {
      fail(kOp, std::string(x.name) + " is " + dtype_name(type) + " and q is " +
                    dtype_name(q.scalar_type()) + "; q, k and v must have one dtype");
    }
  }
}

void check_shapes(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto refuse = [&](const char* reason) {
    fail(kOp, "q is " + shape_of(q) + ", k is " + shape_of(k) + " and v is " + shape_of(v) + "; " +
                  reason);
  };
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) {
    refuse("each must have 4 dimensions: batch, heads, rows and columns");
  }
  if (q.size(0) != k.size(0) || q.size(0) != v.size(0)) refuse("their batches must be equal");
  if (k.size(1) != v.size(1)) refuse("k and v must have as many heads");
  const int64_t kv_heads = k.size(1);
  if (kv_heads == 0 ? q.size(1) != 0 : q.size(1) % kv_heads != 0) {
    refuse("q's heads must be a multiple of k's");
  }
  if (q.size(3) != k.size(3)) refuse("q and k must have as many columns");
  if (k.size(2) != v.size(2)) refuse("k and v must have as many rows");
}

// Returns the mask with a stride of 0 in each dimension that it is expanded in.
Heads expand_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  check_same_device(kOp, {"mask", mask}, {"q", q});
  const ScalarType type = mask.scalar_type();
  if (type != ScalarType::Bool && type != ScalarType::Float) {
    fail(kOp, "mask is " + dtype_name(type) + "; it must be torch.bool or torch.float32");
  }
  const Shape scores = {q.size(0), q.size(1), q.size(2), k.size(2)};
  std::array<int64_t, 4> strides = {};
  bool expands = mask.dim() <= 4;
  for (int64_t d = 4 - mask.dim(), i = 0; expands && i < mask.dim(); ++d, ++i) {
    if (mask.size(i) == scores[d]) {
      strides[d] = mask.stride(i);
    } else {
      expands = mask.size(i) == 1;
    }
  }
  if (!expands) {
    fail(kOp, "mask is " + shape_of(mask) + "; it must expand to " + to_string(scores) +
                  ", which are batch, heads, queries and keys");
  }
  return {data_of(mask), strides[0], strides[1], strides[2], strides[3]};
}

// --- memory --------------------------------------------------------------------------------------

template <class Void>
HeadsOf<Void> heads(Void* data, const Tensor& x) {
  return {data, x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
}

// Returns memory for the result. Its columns are contiguous, and its other dimensions have the
// order of q's strides; that of a contiguous tensor if q is expanded.
Tensor allocate_out(const Tensor& q, const Tensor& v) {
  const Shape shape = {q.size(0), q.size(1), q.size(2), v.size(3)};
  std::array<int64_t, 3> order = {0, 1, 2};
  if (q.stride(0) != 0 && q.stride(1) != 0 && q.stride(2) != 0) {
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](int64_t d) { return q.stride(d); });
  }
  Shape strides(4);
  int64_t stride = 1;
  const auto append = [&](int64_t d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  };
  append(3);
  for (size_t i = order.size(); i-- > 0;) append(order[i]);
  return allocate(kOp, shape, q.scalar_type(), q, "result", &strides);
}

#ifdef TORCH_TILED_WITH_CUDA
void check_gpu(bool is_accepted, const AttentionProblem& p, const Tensor& q, const char* most) {
  if (is_accepted) return;
  fail(kOp, "q is " + shape_of(q) + " on " + device_name(q) + " and v has " +
                std::to_string(p.value_size) + " columns; on a GPU it takes up to " + most +
                " columns, on Hopper (compute capability 9.0) alone");
}
#endif

void launch(const AttentionProblem& p, const Tensor& q) {
  Launches launches(kOp, q);
#ifdef TORCH_TILED_WITH_CUDA
  if (q.is_cuda()) {
    check_gpu(cuda::attention_accepts(p, launches.context), p, q, "256");
    if (!cuda::launch_attention(p, launches.context)) launches.fail_for_memory();
    return;
  }
#endif
  is_16bit(p.dtype) ? cpu::launch_attention_mma(p, launches.context)
                    : cpu::launch_attention(p, launches.context);
}

// The problem of checked operands, without out.
AttentionProblem make_problem(const Tensor& q, const Tensor& k, const Tensor& v,
                              const std::optional<Tensor>& mask,
                              std::optional<int64_t> causal_offset, double scale) {
  check_types(q, k, v);
  check_shapes(q, k, v);
  AttentionProblem p;
  p.dtype = *supported(q.scalar_type());
  p.batch = q.size(0), p.heads = q.size(1), p.kv_heads = k.size(1);
  p.queries = q.size(2), p.keys = k.size(2);
  p.head_size = q.size(3), p.value_size = v.size(3);
  p.scale = static_cast<float>(scale);
  p.causal = causal_offset.has_value(), p.causal_offset = causal_offset.value_or(0);
  if (mask) {
    p.mask = expand_mask(*mask, q, k);
    p.mask_kind = mask->scalar_type() == ScalarType::Bool ? MaskKind::kBool : MaskKind::kFloat;
  }
  p.q = heads(data_of(q), q);
  p.k = heads(data_of(k), k);
  p.v = heads(data_of(v), v);
  return p;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> run_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const std::optional<Tensor>& mask,
                                                 std::optional<int64_t> causal_offset,
                                                 double scale) {
  AttentionProblem p = make_problem(q, k, v, mask, causal_offset, scale);
  const Shape rows = {p.batch, p.heads, p.queries};
  Tensor out = allocate_out(q, v);
  Tensor sum = allocate(kOp, rows, ScalarType::Float, q);
  Tensor exponent = allocate(kOp, rows, ScalarType::Int, q);
  if (sum.numel() == 0) return {out, sum, exponent};
  if (p.keys == 0) {
    torch::stable::zero_(out);
    torch::stable::zero_(sum);
    torch::stable::zero_(exponent);
    return {out, sum, exponent};
  }
  p.out = heads(out.mutable_data_ptr(), out);
  p.sum = static_cast<float*>(sum.mutable_data_ptr());
  p.exponent = static_cast<int32_t*>(exponent.mutable_data_ptr());
  launch(p, q);
  return {out, sum, exponent};
}

std::tuple<Tensor, Tensor, Tensor> run_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& mask, const Tensor& out, const Tensor& sum, const Tensor& exponent,
    std::optional<int64_t> causal_offset, double scale, bool needs_q, bool needs_k, bool needs_v) {
  AttentionBackward p{make_problem(q, k, v, mask, causal_offset, scale), {}, {}, {}, {}};
  if (p.dtype != DType::kFloat32) {
    fail(kOp, "q is " + dtype_name(q.scalar_type()) +
                  "; the gradients' kernels take torch.float32, to which others are cast");
  }
  const Shape of_out = {p.batch, p.heads, p.queries, p.value_size};
  const Shape rows = {p.batch, p.heads, p.queries};
  const auto check = [&](const Named& x, ScalarType dtype, const Shape& shape) {
    check_same_device(kOp, x, {"q", q});
    const bool has_shape = std::ranges::equal(x.tensor.sizes(), shape);
    if (x.tensor.scalar_type() == dtype && has_shape) return;
    fail(kOp, std::string(x.name) + " is " + shape_of(x.tensor) + " of " +
                  dtype_name(x.tensor.scalar_type()) + "; it must be " + to_string(shape) + " of " +
                  dtype_name(dtype));
  };
  check({"grad", grad}, ScalarType::Float, of_out);
  check({"out", out}, ScalarType::Float, of_out);
  check({"sum", sum}, ScalarType::Float, rows);
  check({"exponent", exponent}, ScalarType::Int, rows);
  const auto gradient = [&](bool needed, const Tensor& x) {
    const Shape shape(x.sizes().begin(), x.sizes().end());
    return allocate(kOp, needed ? shape : Shape{0}, ScalarType::Float, q);
  };
  Tensor dq = gradient(needs_q, q), dk = gradient(needs_k, k), dv = gradient(needs_v, v);
  if (sum.numel() == 0 || p.keys == 0) {
    for (Tensor* x : {&dq, &dk, &dv}) torch::stable::zero_(*x);
    return {dq, dk, dv};
  }
#ifdef TORCH_TILED_WITH_CUDA
  if (q.is_cuda()) {
    Launches launches(kOp, q);
    check_gpu(cuda::attention_backward_accepts(p, launches.context), p, q, "128");
    const Tensor sums = torch::stable::contiguous(sum);
    const Tensor exponents = torch::stable::contiguous(exponent);
    p.out = heads(const_cast<void*>(data_of(out)), out);
    p.sum = static_cast<float*>(const_cast<void*>(data_of(sums)));
    p.exponent = static_cast<int32_t*>(const_cast<void*>(data_of(exponents)));
    p.dout = heads(data_of(grad), grad);
    if (needs_q) p.dq = heads(dq.mutable_data_ptr(), dq);
    if (needs_k) p.dk = heads(dk.mutable_data_ptr(), dk);
    if (needs_v) p.dv = heads(dv.mutable_data_ptr(), dv);
    if (!cuda::launch_attention_backward(p, launches.context)) launches.fail_for_memory();
    return {dq, dk, dv};
  }
#endif
  fail(kOp, "q is on " + device_name(q) + "; the gradients' kernels are those of a Hopper GPU");
}

}  // namespace tiled
