#pragma once
// A product's operands as batches of matrices, by the rules of torch.matmul.

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/strided.h"

namespace tiled {

struct Product {
  Strided a, b;  // (..., m, k) and (..., k, n); a vector has got a dimension of 1
  int64_t m = 0, n = 0, k = 0;
  bool a_is_vector = false, b_is_vector = false;
  Shape shape = {};  // of the result, as torch.matmul gives it

  // The result, or what is given for it, as (..., m, n).
  Strided matrices(Strided c) const;
};

// Both throw a sentence that begins with `op` where the shapes do not fit.
Product make_product(const char* op, Strided a, Strided b);
Product make_linear(const char* op, Strided x, Strided weight);

// Lays the batch dimensions of three operands (each (..., rows, cols); a's and b's broadcast to
// c's) into p.a, p.b, p.c and p.batch. Neighbouring dimensions become one where strides allow, and
// a batch that shares one B becomes rows of A. Returns what does not fit in kMaxBatchRank, outer
// dimensions first, as sizes and strides for the caller to walk.
struct OuterDim {
  int64_t size, a_stride, b_stride, c_stride;
};
std::vector<OuterDim> lay_out_batch(const Strided& a, const Strided& b, const Strided& c,
                                    Problem& p);

}  // namespace tiled
