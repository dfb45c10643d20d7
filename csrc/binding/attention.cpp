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
constexpr const char* kPackedOp = "tiled::attention_packed";

// --- checks, which torch_tiled/_op/checks.py makes for tensors without data ----------------------

void check_types(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                 bool takes_16bit) {
  for (const Named& x : {Named{"query", q}, Named{"key", k}, Named{"value", v}}) {
    check_same_device(op, x, {"query", q});
    const ScalarType type = x.tensor.scalar_type();
    if (type != ScalarType::Float && !(takes_16bit && is_16bit(type))) {
      fail(op, std::string(x.name) + " is " + dtype_name(type) +
                   "; query, key and value must be torch.float32" +
                   (takes_16bit ? ", torch.bfloat16 or torch.float16" : ""));
    }
    if (type != q.scalar_type()) {
      fail(op, std::string(x.name) + " is " + dtype_name(type) + " and query is " +
                   dtype_name(q.scalar_type()) + "; query, key and value must have one dtype");
    }
  }
}

// rows: their dimension; heads are dimension 1, and columns the last one.
void check_shapes(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, int rows) {
  const auto refuse = [&](const char* reason) {
    fail(op, "query is " + shape_of(q) + ", key is " + shape_of(k) + " and value is " +
                 shape_of(v) + "; " + reason);
  };
  const bool is_packed = rows == 0;
  const int dims = is_packed ? 3 : 4;
  if (q.dim() != dims || k.dim() != dims || v.dim() != dims) {
    refuse(is_packed ? "each must have 3 dimensions: rows, heads and columns"
                     : "each must have 4 dimensions: batch, heads, rows and columns");
  }
  if (!is_packed && (q.size(0) != k.size(0) || q.size(0) != v.size(0))) {
    refuse("their batches must be equal");
  }
  if (k.size(1) != v.size(1)) refuse("key and value must have as many heads");
  const int64_t kv_heads = k.size(1);
  if (kv_heads == 0 ? q.size(1) != 0 : q.size(1) % kv_heads != 0) {
    refuse("query's heads must be a multiple of key's");
  }
  if (q.size(dims - 1) != k.size(dims - 1)) refuse("query and key must have as many columns");
  if (k.size(rows) != v.size(rows)) refuse("key and value must have as many rows");
  constexpr int64_t kMostRows = int64_t{1} << 30;  // of packed sequences
  if (is_packed && std::max(q.size(0), k.size(0)) >= kMostRows) {
    refuse("each must have less than 2**30 rows");
  }
}

void check_offsets(const Named& offsets, const Tensor& offsets_q, const Tensor& q) {
  check_same_device(kPackedOp, offsets, {"query", q});
  const Tensor& x = offsets.tensor;
  const std::string name = offsets.name;
  if (x.scalar_type() != ScalarType::Int) {
    fail(kPackedOp, name + " is " + dtype_name(x.scalar_type()) + "; it must be torch.int32");
  }
  if (x.dim() != 1 || x.size(0) == 0 || x.size(0) != offsets_q.size(0)) {
    fail(kPackedOp, "offsets_q is " + shape_of(offsets_q) + " and " + name + " is " + shape_of(x) +
                        "; both must be (sequences + 1,)");
  }
  constexpr int64_t kMostSequences = int64_t{1} << 23;
  if (x.size(0) > kMostSequences) {
    fail(kPackedOp, name + " is " + shape_of(x) + "; it must have at most 2**23 offsets");
  }
}

// Returns the mask with a stride of 0 in each dimension that it is expanded in.
Heads expand_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  check_same_device(kOp, {"attn_mask", mask}, {"query", q});
  const ScalarType type = mask.scalar_type();
  if (type != ScalarType::Bool && type != ScalarType::Float) {
    fail(kOp, "attn_mask is " + dtype_name(type) + "; it must be torch.bool or torch.float32");
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
    fail(kOp, "attn_mask is " + shape_of(mask) + "; it must expand to " + to_string(scores) +
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
void check_gpu(const char* op, bool is_accepted, const AttentionProblem& p, const Tensor& q,
               const char* most) {
  if (is_accepted) return;
  fail(op, "query is " + shape_of(q) + " on " + device_name(q) + " and value has " +
               std::to_string(p.value_size) + " columns; on a GPU it takes up to " + most +
               " columns, on Hopper (compute capability 9.0) alone");
}
#endif

void launch(const char* op, const AttentionProblem& p, const Tensor& q) {
  Launches launches(op, q);
#ifdef TORCH_TILED_WITH_CUDA
  if (q.is_cuda()) {
    check_gpu(op, cuda::attention_accepts(p, launches.context), p, q, "256");
    if (!cuda::launch_attention(p, launches.context)) launches.fail_for_memory();
    return;
  }
#endif
  is_16bit(p.dtype) ? cpu::launch_attention_mma(p, launches.context)
                    : cpu::launch_attention(p, launches.context);
}

void launch_backward(const char* op, const AttentionBackward& p, const Tensor& q) {
  Launches launches(op, q);
#ifdef TORCH_TILED_WITH_CUDA
  if (q.is_cuda()) {
    check_gpu(op, cuda::attention_backward_accepts(p, launches.context), p, q, "128");
    if (!cuda::launch_attention_backward(p, launches.context)) launches.fail_for_memory();
    return;
  }
#endif
  if (p.is_packed()) {
    fail(op, "query is on " + device_name(q) +
                 "; the gradients of packed sequences have kernels on a Hopper GPU alone");
  }
  cpu::launch_attention_backward(p, launches.context);
}

// The problem of checked operands, without out.
AttentionProblem make_problem(const Tensor& q, const Tensor& k, const Tensor& v,
                              const std::optional<Tensor>& mask,
                              std::optional<int64_t> causal_offset, double scale) {
  check_types(kOp, q, k, v, /*takes_16bit=*/true);
  check_shapes(kOp, q, k, v, /*rows=*/2);
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

template <class Void>
HeadsOf<Void> packed_heads(Void* data, const Tensor& x) {
  return {data, 0, x.stride(1), x.stride(0), x.stride(2)};
}

// The same of packed sequences. Offsets are contiguous.
AttentionProblem make_packed(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& offsets_q, const Tensor& offsets_k, int64_t max_q,
                             int64_t max_k, bool is_causal, double scale) {
  check_types(kPackedOp, q, k, v, /*takes_16bit=*/false);
  check_shapes(kPackedOp, q, k, v, /*rows=*/0);
  check_offsets({"offsets_q", offsets_q}, offsets_q, q);
  check_offsets({"offsets_k", offsets_k}, offsets_q, q);
  if (std::min(max_q, max_k) < 0) {
    fail(kPackedOp, "max_q is " + std::to_string(max_q) + " and max_k is " + std::to_string(max_k) +
                        "; both must be 0 or more");
  }
  AttentionProblem p;
  p.heads = q.size(1), p.kv_heads = k.size(1);
  p.queries = std::min(max_q, q.size(0)), p.keys = std::min(max_k, k.size(0));
  p.head_size = q.size(2), p.value_size = v.size(2);
  p.scale = static_cast<float>(scale);
  p.causal = is_causal;
  p.q = packed_heads(data_of(q), q);
  p.k = packed_heads(data_of(k), k);
  p.v = packed_heads(data_of(v), v);
  const auto rows_of = [](const Tensor& offsets, const Tensor& x) {
    return PackedRows{static_cast<const int32_t*>(data_of(offsets)),
                      static_cast<int>(offsets.size(0) - 1), static_cast<int>(x.size(0))};
  };
  p.packed_queries = rows_of(offsets_q, q);
  p.packed_keys = rows_of(offsets_k, k);
  return p;
}

// --- gradients -----------------------------------------------------------------------------------

// What the forward pass computed, and the gradient of out.
struct Saved {
  const Tensor &grad, &out, &sum, &exponent;
};

std::tuple<Tensor, Tensor, Tensor> compute_gradients(
    const char* op, const AttentionProblem& forward, const Saved& saved, const Shape& of_out,
    const Shape& rows, const std::array<Tensor, 3>& operands, const std::array<bool, 3>& needs,
    Tensor& dscores) {
  const Tensor& q = operands[0];
  const auto check = [&](const Named& x, ScalarType dtype, const Shape& shape) {
    check_same_device(op, x, {"query", q});
    const bool has_shape = std::ranges::equal(x.tensor.sizes(), shape);
    if (x.tensor.scalar_type() == dtype && has_shape) return;
    fail(op, std::string(x.name) + " is " + shape_of(x.tensor) + " of " +
                 dtype_name(x.tensor.scalar_type()) + "; it must be " + to_string(shape) + " of " +
                 dtype_name(dtype));
  };
  check({"grad", saved.grad}, ScalarType::Float, of_out);
  check({"out", saved.out}, ScalarType::Float, of_out);
  check({"sum", saved.sum}, ScalarType::Float, rows);
  check({"exponent", saved.exponent}, ScalarType::Int, rows);
  const auto gradient = [&](int i) {
    const auto sizes = operands[i].sizes();
    const Shape shape = needs[i] ? Shape(sizes.begin(), sizes.end()) : Shape{0};
    return allocate(op, shape, ScalarType::Float, q);
  };
  Tensor dq = gradient(0), dk = gradient(1), dv = gradient(2);
  const bool has_sequences = !forward.is_packed() || forward.packed_queries.count > 0;
  if (saved.sum.numel() == 0 || forward.keys == 0 || !has_sequences) {
    for (Tensor* x : {&dq, &dk, &dv, &dscores}) torch::stable::zero_(*x);
    return {dq, dk, dv};
  }
  if (forward.causal) torch::stable::zero_(dscores);
  AttentionBackward p{forward, {}, {}, {}, {}};
  const Tensor sums = torch::stable::contiguous(saved.sum);
  const Tensor exponents = torch::stable::contiguous(saved.exponent);
  const auto of = [&](auto* data, const Tensor& x) {
    return p.is_packed() ? packed_heads(data, x) : heads(data, x);
  };
  p.out = of(const_cast<void*>(data_of(saved.out)), saved.out);
  p.sum = static_cast<float*>(const_cast<void*>(data_of(sums)));
  p.exponent = static_cast<int32_t*>(const_cast<void*>(data_of(exponents)));
  p.dout = of(data_of(saved.grad), saved.grad);
  if (needs[0]) p.dq = of(dq.mutable_data_ptr(), dq);
  if (needs[1]) p.dk = of(dk.mutable_data_ptr(), dk);
  if (needs[2]) p.dv = of(dv.mutable_data_ptr(), dv);
  if (dscores.numel() > 0) p.dscores = static_cast<float*>(dscores.mutable_data_ptr());
  launch_backward(op, p, q);
  return {dq, dk, dv};
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
  launch(kOp, p, q);
  return {out, sum, exponent};
}

std::tuple<Tensor, Tensor, Tensor> run_attention_packed(const Tensor& q, const Tensor& k,
                                                        const Tensor& v, const Tensor& offsets_q,
                                                        const Tensor& offsets_k, int64_t max_q,
                                                        int64_t max_k, bool is_causal,
                                                        double scale) {
  const Tensor ends_q = torch::stable::contiguous(offsets_q);
  const Tensor ends_k = torch::stable::contiguous(offsets_k);
  AttentionProblem p = make_packed(q, k, v, ends_q, ends_k, max_q, max_k, is_causal, scale);
  const Shape of_out = {q.size(0), q.size(1), v.size(2)}, rows = {q.size(1), q.size(0)};
  Tensor out = allocate(kPackedOp, of_out, ScalarType::Float, q, "result");
  Tensor sum = allocate(kPackedOp, rows, ScalarType::Float, q);
  Tensor exponent = allocate(kPackedOp, rows, ScalarType::Int, q);
  if (sum.numel() == 0) return {out, sum, exponent};
  if (p.keys == 0 || p.packed_queries.count == 0) {
    torch::stable::zero_(out);
    torch::stable::zero_(sum);
    torch::stable::zero_(exponent);
    return {out, sum, exponent};
  }
  p.out = packed_heads(out.mutable_data_ptr(), out);
  p.sum = static_cast<float*>(sum.mutable_data_ptr());
  p.exponent = static_cast<int32_t*>(exponent.mutable_data_ptr());
  launch(kPackedOp, p, q);
  return {out, sum, exponent};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> run_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& mask, const Tensor& out, const Tensor& sum, const Tensor& exponent,
    std::optional<int64_t> causal_offset, double scale, bool needs_q, bool needs_k, bool needs_v,
    bool needs_scores) {
  const AttentionProblem p = make_problem(q, k, v, mask, causal_offset, scale);
  if (p.dtype != DType::kFloat32) {
    fail(kOp, "query is " + dtype_name(q.scalar_type()) +
                  "; the gradients' kernels take torch.float32, to which others are cast");
  }
  if (needs_scores && p.mask_kind != MaskKind::kFloat) {
    fail(kOp, "needs_scores is True; pass False unless attn_mask is torch.float32");
  }
  const Shape of_out = {p.batch, p.heads, p.queries, p.value_size};
  const Shape rows = {p.batch, p.heads, p.queries};
  const Shape of_scores = needs_scores ? Shape{p.batch, p.heads, p.queries, p.keys} : Shape{0};
  Tensor dscores = allocate(kOp, of_scores, ScalarType::Float, q);
  const auto [dq, dk, dv] = compute_gradients(kOp, p, {grad, out, sum, exponent}, of_out, rows,
                                              {q, k, v}, {needs_q, needs_k, needs_v}, dscores);
  return {dq, dk, dv, dscores};
}

std::tuple<Tensor, Tensor, Tensor> run_attention_packed_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets_q,
    const Tensor& offsets_k, const Tensor& out, const Tensor& sum, const Tensor& exponent,
    int64_t max_q, int64_t max_k, bool is_causal, double scale, bool needs_q, bool needs_k,
    bool needs_v) {
  const Tensor ends_q = torch::stable::contiguous(offsets_q);
  const Tensor ends_k = torch::stable::contiguous(offsets_k);
  const AttentionProblem p = make_packed(q, k, v, ends_q, ends_k, max_q, max_k, is_causal, scale);
  const Shape of_out = {q.size(0), p.heads, p.value_size}, rows = {p.heads, q.size(0)};
  Tensor none = allocate(kPackedOp, Shape{0}, ScalarType::Float, q);
  return compute_gradients(kPackedOp, p, {grad, out, sum, exponent}, of_out, rows, {q, k, v},
                           {needs_q, needs_k, needs_v}, none);
}

}  // namespace tiled
