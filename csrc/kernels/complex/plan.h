#pragma once
// The cycles of the pass that writes B' of a complex B (core/complex.h).

#include <cstdint>

namespace tiled {

namespace h200 {
// The launch of the pass in cycles, and the bandwidth of DRAM for each SM in bytes per cycle.
inline constexpr double kPackLaunch = 3000, kPackDram = 13;
}  // namespace h200

// `b_bytes`: of B'.
inline double pack_cycles(int64_t b_bytes, int64_t sms) {
  const double bytes = 1.5 * static_cast<double>(b_bytes);  // B is read, B' is written
  return h200::kPackLaunch + bytes / (h200::kPackDram * static_cast<double>(sms));
}

}  // namespace tiled
