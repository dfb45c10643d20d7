#pragma once
// The cycles of the pass that writes B' of a complex B (core/complex.h).

#include <cstdint>

#include "kernels/common/costs_h200.h"

namespace tiled {

// `b_bytes`: of B'.
inline double pack_cycles(int64_t b_bytes, int64_t sms) {
  const double bytes = 1.5 * static_cast<double>(b_bytes);  // B is read, B' is written
  return h200::kPackLaunch + bytes / (h200::kPackDram * static_cast<double>(sms));
}

}  // namespace tiled
