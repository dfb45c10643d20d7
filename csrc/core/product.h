#pragma once
// The operands of a product as batches of matrices, by the rules of torch.matmul.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.h"
#include "core/strided.h"

namespace tiled {

struct Product {
  Strided a, b;  // (..., m, k) and (..., k, n); a vector gets a dimension of 1
  int64_t m = 0, n = 0, k = 0;
  bool a_is_vector = false, b_is_vector = false;
  Shape shape = {};               // of torch.matmul's result
  std::optional<Strided> c = {};  // the result as (..., m, n), if a caller says where it is

  // The result as (..., m, n): c with the dimensions that vectors lack.
  Strided matrices(Strided result) const;
};

// Both throw a sentence that begins with `op` if the shapes do not fit.
Product make_product(const char* op, Strided a, Strided b);
Product make_linear(const char* op, Strided x, Strided weight);

// Lays the batch dimensions of three tensors (each (..., rows, cols); a's and b's broadcast to c's)
// out in p.a, p.b, p.c and p.batch. Adjacent dimensions are merged if strides allow, and a batch
// that shares one B becomes rows of A. Returns the dimensions that exceed kMaxBatchRank, outermost
// first, for the caller to loop over. `c_data` is c's memory.
struct OuterDim {
  int64_t size, a_stride, b_stride, c_stride;
};
std::vector<OuterDim> lay_out_batch(const Strided& a, const Strided& b, const Strided& c,
                                    void* c_data, Problem& p);

}  // namespace tiled
