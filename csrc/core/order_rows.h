#pragma once
// Reductions of rows, specified to the bit: sums, softmax and norms. A row's bits depend on its
// numbers and its length alone. The GPU's kernels and the host's compute them by the functions
// below. 16-bit floats are widened to float32, and results are rounded to them at the end.
//
// The sum of a row, S(x): element i belongs to chunk i / kChunk and in it to part i % kParts. A
// part's terms are added to +0, ascending; terms that are products are added by FMAs. Then
// part_j = part_j + part_{j + w} for all j < w, with w = kParts / 2, kParts / 4, ..., 1, and part_0
// is the chunk's sum. The sums of more than one chunk are a row that is summed likewise. So zeros
// after the last element change no bit, unless all products of a sum underflow to -0.
//
// The sum of a column over rows, for the gradient of a weight: S of each kChunk rows, and these
// sums are added to +0, ascending.
//
//   softmax        y_i = exp_of(x_i - m) * (1 / L), with m the largest x_i and
//                  L = S(exp_of(x_i - m)); log: y_i = (x_i - m) - log_of(L). logsumexp:
//                  m + log_of(L), or m if it is Inf
//   its gradient   y_i * (g_i - S(g y)); log: g_i - exp_of(y_i) * S(g), by an FMA
//   layer norm     mean = S(x) / n, inverse = 1 / sqrt(S(d d) / n + eps) with d_i = x_i - mean,
//                  y_i = (d_i * inverse) * w_i + b_i, by an FMA
//   RMS norm       the same with a mean of 0
//   its gradient   g_i = dy_i * w_i, h_i = d_i * inverse:
//                  ((g_i - S(g) / n) - h_i * (S(g h) / n), by an FMA) * inverse; RMS: S(g) is 0
//   that of w, b   the column sums of dy h, by FMAs, and of dy
//
// The exponential and the logarithm of float64 are the math library's, whose bits a GPU and a CPU
// need not share.

#include <cmath>
#include <cstdint>

#include "core/element.h"
#include "core/order_attention.h"

namespace tiled::rows {

inline constexpr int kChunk = 1024, kParts = 128;

// Returns the larger number, or NaN if either is NaN.
template <typename T>
HOST_DEVICE inline T max_or_nan(T x, T y) {
  return x > y || x != x ? x : y;
}

// exp(x) of x <= 0, off by at most 1e-7 of it, or by two units of the last place below 2^-126.
// exp_of(0) is 1. The polynomial is 2^f in [-0.5, 0.5] with an error of 2e-9.
HOST_DEVICE inline float exp_of(float x) {
  constexpr float kLog2e = 0x1.715476p0f, kRest = 0x1.4ae0cp-26f;  // of log2(e)
  constexpr float kLeast = -104;                                   // exp() rounds to 0
  const float clamped = x < kLeast ? kLeast : x;
  const attention::Log2 log2 = attention::round_log2(clamped, kLog2e);
  const float f = fmaf(clamped, kRest, log2.fraction);
  float p = 0x1.41fbbap-13f;
  p = fmaf(p, f, 0x1.5f3e54p-10f);
  p = fmaf(p, f, 0x1.3b2d4cp-7f);
  p = fmaf(p, f, 0x1.c6aee8p-5f);
  p = fmaf(p, f, 0x1.ebfbdcp-3f);
  p = fmaf(p, f, 0x1.62e43p-1f);
  p = fmaf(p, f, 1.0f);
  // One factor would round to a subnormal number; two do not round twice.
  constexpr int kLeastNormal = -120;
  const int normal = log2.whole < kLeastNormal ? kLeastNormal : log2.whole;
  return p * attention::power_of_two(normal) * attention::power_of_two(log2.whole - normal);
}
HOST_DEVICE inline double exp_of(double x) { return exp(x); }

// log(x) of a normal x > 0, to the nearest float but for rounding twice. The series of atanh() in
// double has an error below 1e-15.
HOST_DEVICE inline float log_of(float x) {
  if (!(x < INFINITY)) return x;  // Inf and NaN
  if (x == 0) return -INFINITY;
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  const auto exponent = static_cast<int32_t>(bits_of(x) - kSqrtHalf) >> 23;
  const double mantissa = float_of(bits_of(x) - (static_cast<uint32_t>(exponent) << 23));
  const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
  double series = 0;
  for (int odd = 21; odd > 0; odd -= 2) series = series * square + 1.0 / odd;
  return static_cast<float>(exponent * 0x1.62e42fefa39efp-1 + 2 * s * series);
}
HOST_DEVICE inline double log_of(double x) { return log(x); }

// The logarithm of a row's sum of exponentials, from its largest element m and log_of(L).
template <typename T>
HOST_DEVICE inline T logsumexp(T m, T log_sum) {
  return m == INFINITY || m == -INFINITY ? m : m + log_sum;
}

}  // namespace tiled::rows
