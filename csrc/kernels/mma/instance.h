#pragma once
// From a problem's dtype and layout to the template arguments of the mma kernels.

#include "core/element.h"
#include "core/problem.h"
#include "kernels/common/dispatch.h"
#include "kernels/mma/plan.h"

namespace tiled::cuda {

// Calls f.template operator()<T>() with the type of a 16-bit float.
template <class F>
void with_16bit_type(DType dtype, F&& f) {
  dtype == DType::kFloat16 ? f.template operator()<Half>() : f.template operator()<BFloat16>();
}

// Calls f.template operator()<T, kAMnMajor, kBMnMajor>().
template <class F>
void with_mma_kind(const Problem& p, F&& f) {
  with_16bit_type(p.dtype, [&]<class T>() {
    with_majors(p, [&]<bool kAMnMajor, bool kBMnMajor>() {
      f.template operator()<T, kAMnMajor, kBMnMajor>();
    });
  });
}

}  // namespace tiled::cuda
