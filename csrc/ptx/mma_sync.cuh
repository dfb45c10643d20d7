#pragma once
// The tensor-core product of one warp: PTX ISA, "mma.sync.m16n8k16", and for float64
// "mma.sync.m16n8k8" and "mma.sync.m8n8k4".

#include <cstdint>

namespace tiled::ptx {

// d (16, 8) += a (16, 16) b (16, 8). With g = lane / 4 and q = lane % 4, a lane holds of a:
// elements 2q and 2q + 1 along K of rows g and g + 8, then 2q + 8 and 2q + 9 of both; of b: the
// same elements of column g; of d: columns 2q and 2q + 1 of rows g and g + 8.
template <bool kBFloat16 = false>
__device__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kBFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// d = a b, float16.
__device__ inline void mma_m16n8k16_from_0(float (&d)[4], const uint32_t (&a)[4],
                                           const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

// d (16, 8) += a (16, 8) b (8, 8) in float64: to each element of d the products are added one after
// another, ascending in k, each as by fma(). With g = lane / 4 and q = lane % 4, a lane holds a[0]
// of row g and a[1] of row g + 8: elements q and q + 4 along K; of b the same elements of column g;
// of d columns 2q and 2q + 1 of rows g and g + 8.
__device__ inline void mma_m16n8k8_f64(double (&d)[4], const double (&a)[2][2],
                                       const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0][0]), "d"(a[1][0]), "d"(a[0][1]), "d"(a[1][1]), "d"(b[0]), "d"(b[1]));
#else
  _Pragma("unroll") for (int step = 0; step < 2; ++step) {
    _Pragma("unroll") for (int i = 0; i < 2; ++i) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(d[i * 2]), "+d"(d[i * 2 + 1])
          : "d"(a[i][step]), "d"(b[step]));
    }
  }
#endif
}

}  // namespace tiled::ptx
