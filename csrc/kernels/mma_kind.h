#pragma once
// What the mma rungs have kernels for.

#include "element.h"
#include "problem.h"

namespace tiled::cuda {

// Calls f.template operator()<T, kAAcross, kBAcross>() with the type of halves, and whether
// neighbours lie across K, along A's rows or B's columns, or else along K.
template <class F>
void with_mma_kind(const Problem& p, F&& f) {
  const bool a_across = p.a.row_stride < p.a.col_stride;
  const bool b_across = p.b.col_stride < p.b.row_stride;
  const auto with_type = [&]<class T>() {
    if (a_across) {
      b_across ? f.template operator()<T, true, true>() : f.template operator()<T, true, false>();
    } else {
      b_across ? f.template operator()<T, false, true>() : f.template operator()<T, false, false>();
    }
  };
  p.dtype == DType::kFloat16 ? with_type.template operator()<Half>()
                             : with_type.template operator()<BFloat16>();
}

}  // namespace tiled::cuda
