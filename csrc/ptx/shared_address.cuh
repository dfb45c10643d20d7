#pragma once
// Addresses in shared memory, as PTX takes them.

#include <cstdint>

namespace tiled::ptx {

__device__ inline uint32_t shared_address(const void* smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem));
}

}  // namespace tiled::ptx
