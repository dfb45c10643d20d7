#pragma once
// mma.sync of float64: PTX ISA, "mma.sync.aligned.m8n8k4" and "m16n8k8". To each element of d the
// products are added one after another, ascending in k, each as by fma().
//
// Below, g = lane / 4 and q = lane % 4.

namespace tiled::ptx {

// d (8, 8) += a (8, 4) b (4, 8). A lane holds of a element q of row g, of b element q of column g,
// and of d columns 2q and 2q + 1 of row g.
__device__ inline void mma_m8n8k4_f64(double& d0, double& d1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(d0), "+d"(d1)
      : "d"(a), "d"(b));
}

// d (16, 8) += a (16, 8) b (8, 8). A lane holds a[0] of row g and a[1] of row g + 8: elements q and
// q + 4 along K; of b the same elements of column g; of d columns 2q and 2q + 1 of rows g and g
// + 8.
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
      mma_m8n8k4_f64(d[i * 2], d[i * 2 + 1], a[i][step], b[step]);
    }
  }
#endif
}

}  // namespace tiled::ptx
