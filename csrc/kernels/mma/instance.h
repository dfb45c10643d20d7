#pragma once
// What the mma rungs have kernels for.

#include "core/element.h"
#include "core/problem.h"
#include "kernels/mma/plan.h"

namespace tiled::cuda {

// Calls f.template operator()<T, kAMnMajor, kBMnMajor>() with the type of halves, and whether
// neighbours lie across K, along A's rows or B's columns, or else along K.
template <class F>
void with_mma_kind(const Problem& p, F&& f) {
  const bool a_mn_major = is_mn_major(p.a), b_mn_major = is_mn_major(transposed(p.b));
  const auto with_type = [&]<class T>() {
    if (a_mn_major) {
      b_mn_major ? f.template operator()<T, true, true>() : f.template operator()<T, true, false>();
    } else {
      b_mn_major ? f.template operator()<T, false, true>()
                 : f.template operator()<T, false, false>();
    }
  };
  p.dtype == DType::kFloat16 ? with_type.template operator()<Half>()
                             : with_type.template operator()<BFloat16>();
}

}  // namespace tiled::cuda
