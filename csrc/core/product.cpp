#include "core/product.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "core/error.h"

namespace tiled {
namespace {

bool merges(const OuterDim& outer, const OuterDim& inner) {
  return outer.a_stride == inner.size * inner.a_stride &&
         outer.b_stride == inner.size * inner.b_stride &&
         outer.c_stride == inner.size * inner.c_stride;
}

// Returns whether the innermost batch dimension continues the rows of A and C and leaves B alone.
bool folds_into_rows(const OuterDim& dim, const Problem& p) {
  if (dim.b_stride != 0) return false;
  if (p.m == 1) return true;
  return dim.a_stride == p.m * p.a.row_stride && dim.c_stride == p.m * p.c.row_stride;
}

}  // namespace

Strided Product::matrices(Strided result) const {
  if (c) return *c;
  if (b_is_vector) result.insert(result.rank(), 1, 0);
  if (a_is_vector) result.insert(result.rank() - 1, 1, 0);
  return result;
}

Product make_product(const char* op, Strided a, Strided b) {
  Product p{.a = std::move(a), .b = std::move(b)};
  auto refuse = [&](const std::string& reason) {  // with the shapes that were given
    const std::span a_given = std::span(p.a.sizes).subspan(p.a_is_vector ? 1 : 0);
    const std::span b_given =
        std::span(p.b.sizes).first(p.b.sizes.size() - (p.b_is_vector ? 1 : 0));
    fail(op, "a is " + to_string(a_given) + " and b is " + to_string(b_given) + "; " + reason);
  };
  if (p.a.rank() == 0 || p.b.rank() == 0) {
    refuse("both need at least one dimension (torch.mul multiplies by a scalar)");
  }
  p.a_is_vector = p.a.rank() == 1;
  p.b_is_vector = p.b.rank() == 1;
  if (p.a_is_vector) p.a.insert(0, 1, 0);
  if (p.b_is_vector) p.b.insert(1, 1, 0);
  p.m = p.a.sizes[p.a.rank() - 2];
  p.k = p.a.sizes[p.a.rank() - 1];
  p.n = p.b.sizes[p.b.rank() - 1];
  if (p.b.sizes[p.b.rank() - 2] != p.k) refuse("a's columns must equal b's rows");

  const std::span a_batch(p.a.sizes.data(), p.a.sizes.size() - 2);
  const std::span b_batch(p.b.sizes.data(), p.b.sizes.size() - 2);
  auto batch = broadcast(a_batch, b_batch);
  if (!batch) {
    refuse("their batch dimensions " + to_string(a_batch) + " and " + to_string(b_batch) +
           " do not broadcast");
  }
  p.shape = std::move(*batch);
  if (!p.a_is_vector) p.shape.push_back(p.m);
  if (!p.b_is_vector) p.shape.push_back(p.n);
  return p;
}

Product make_linear(const char* op, Strided x, Strided weight) {
  auto refuse = [&](const std::string& reason) {
    fail(op, "x is " + to_string(x.sizes) + " and weight is " + to_string(weight.sizes) + "; " +
                 reason);
  };
  if (weight.rank() != 2) refuse("weight must be (out_features, in_features)");
  if (x.rank() == 0 || x.sizes.back() != weight.sizes[1]) {
    refuse("x's last dimension must equal weight's");
  }
  weight.swap_last_two();
  return make_product(op, std::move(x), std::move(weight));
}

std::vector<OuterDim> lay_out_batch(const Strided& a, const Strided& b, const Strided& c,
                                    void* c_data, Problem& p) {
  const auto lay_out = [](auto& matrix, auto* data, const Strided& x) {
    matrix = {
        .data = data, .row_stride = x.strides[x.rank() - 2], .col_stride = x.strides[x.rank() - 1]};
  };
  lay_out(p.a, a.data, a);
  lay_out(p.b, b.data, b);
  lay_out(p.c, c_data, c);

  const int64_t batch_rank = c.rank() - 2;
  auto stride = [&](const Strided& x, int64_t d) {  // 0 if x broadcasts over c's dimension d
    const int64_t own = d - (batch_rank - (x.rank() - 2));
    return own < 0 || x.sizes[own] == 1 ? 0 : x.strides[own];
  };
  std::vector<OuterDim> dims;  // outermost first
  for (int64_t d = 0; d < batch_rank; ++d) {
    const OuterDim dim{c.sizes[d], stride(a, d), stride(b, d), c.strides[d]};
    if (dim.size == 1) continue;
    if (!dims.empty() && merges(dims.back(), dim)) {
      dims.back() = {dims.back().size * dim.size, dim.a_stride, dim.b_stride, dim.c_stride};
    } else {
      dims.push_back(dim);
    }
  }
  while (!dims.empty() && folds_into_rows(dims.back(), p)) {
    if (p.m == 1) {
      p.a.row_stride = dims.back().a_stride;
      p.c.row_stride = dims.back().c_stride;
    }
    p.m *= dims.back().size;
    dims.pop_back();
  }

  // The distance between the rows of a single row means nothing: it becomes one that every kernel
  // can read.
  const auto align_single = [&](int64_t inner, int64_t& outer) {
    constexpr int64_t kMultiple = 64;
    if (inner == 1) outer = ceil_div(p.k, kMultiple) * kMultiple;
  };
  if (p.m == 1) align_single(p.a.col_stride, p.a.row_stride);
  if (p.n == 1) align_single(p.b.row_stride, p.b.col_stride);

  const auto inner = std::min<size_t>(dims.size(), kMaxBatchRank);
  const auto outer = dims.size() - inner;
  p.batch.rank = static_cast<int>(inner);
  for (size_t d = 0; d < inner; ++d) {
    const OuterDim& dim = dims[outer + d];
    p.batch.size[d] = dim.size;
    p.batch.count *= dim.size;
    p.a.batch_stride[d] = dim.a_stride;
    p.b.batch_stride[d] = dim.b_stride;
    p.c.batch_stride[d] = dim.c_stride;
  }
  dims.resize(outer);
  return dims;
}

}  // namespace tiled
