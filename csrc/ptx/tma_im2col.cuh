#pragma once
// Loads of windows of images by TMA: PTX ISA, "cp.async.bulk.tensor", "im2col mode".

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace tiled::ptx {

// Loads a tap of windows, as the tensor map (kernels/conv/im2col_map.h) has of them. `coords` are a
// channel, the width, height and depth of the first window's first tap, and an image; the tap is
// `offsets` away from it along width, height and depth.
__device__ inline void tma_load_im2col(void* smem, const void* map, const int (&coords)[5],
                                       const uint16_t (&offsets)[3], uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.im2col.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(shared_address(smem)),
      "l"(map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[3]), "r"(coords[4]),
      "r"(shared_address(barrier)), "h"(offsets[0]), "h"(offsets[1]), "h"(offsets[2])
      : "memory");
}
// The same for images without depth: its coordinate and its offset are left out.
__device__ inline void tma_load_im2col_2d(void* smem, const void* map, const int (&coords)[5],
                                          const uint16_t (&offsets)[3], uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.im2col.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(shared_address(smem)),
      "l"(map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[4]),
      "r"(shared_address(barrier)), "h"(offsets[0]), "h"(offsets[1])
      : "memory");
}

}  // namespace tiled::ptx
