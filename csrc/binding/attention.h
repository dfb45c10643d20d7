#pragma once
// Scaled dot product attention of float32 tensors, in the order of core/order_attention.h.

#include <cstdint>
#include <optional>
#include <tuple>

#include "binding/tensors.h"

namespace tiled {

// Returns out, (batch, heads, queries, columns of v), with the dimensions of q in memory's order;
// and the softmax's denominator sum * 2^exponent, each (batch, heads, queries).
//
// mask: of bool or float32, expanded to (batch, heads, queries, keys).
// causal_offset: query i sees keys 0 to i + causal_offset.
std::tuple<Tensor, Tensor, Tensor> run_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const std::optional<Tensor>& mask,
                                                 std::optional<int64_t> causal_offset,
                                                 double scale);

// The same of packed sequences: q is (rows, heads, columns), and so are k and v. out is contiguous;
// sum and exponent are (heads, rows). offsets_q and offsets_k are int32 of (sequences + 1), on the
// device of q: sequence i has rows offsets[i] up to offsets[i + 1], of which max_q and max_k are
// the most. Rows of no sequence get zeros.
std::tuple<Tensor, Tensor, Tensor> run_attention_packed(const Tensor& q, const Tensor& k,
                                                        const Tensor& v, const Tensor& offsets_q,
                                                        const Tensor& offsets_k, int64_t max_q,
                                                        int64_t max_k, bool is_causal,
                                                        double scale);

// The gradients of q, k and v, as run_attention_backward() returns them, on a GPU that has the
// kernels. Rows of no sequence get zeros.
std::tuple<Tensor, Tensor, Tensor> run_attention_packed_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets_q,
    const Tensor& offsets_k, const Tensor& out, const Tensor& sum, const Tensor& exponent,
    int64_t max_q, int64_t max_k, bool is_causal, double scale, bool needs_q, bool needs_k,
    bool needs_v);

// Returns the gradients of q, k, v and the scores from `grad`, that of out; an empty tensor for one
// that is not needed. That of the scores, (batch, heads, queries, keys), is that of a float32 mask
// before it is summed over the dimensions that the mask is expanded in. out, sum and exponent are
// run_attention()'s.
std::tuple<Tensor, Tensor, Tensor, Tensor> run_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& mask, const Tensor& out, const Tensor& sum, const Tensor& exponent,
    std::optional<int64_t> causal_offset, double scale, bool needs_q, bool needs_k, bool needs_v,
    bool needs_scores);

}  // namespace tiled
