#pragma once
// Copies by the Tensor Memory Accelerator: PTX ISA, "cp.async.bulk" and "cp.async.bulk.tensor".

#include <cstdint>
#include <cuda/ptx>

#include "ptx/shared_address.cuh"

namespace tiled::ptx {

// Copies `bytes` from global to shared memory, both 16-byte aligned, and counts them at `barrier`.
__device__ inline void bulk_load(void* smem, const void* global, int bytes, uint64_t* barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, smem, global,
                             bytes, barrier);
}

// Loads the box of a tensor map (kernels/common/tensor_map.h) that begins at `coords`.
__device__ inline void tma_load(void* smem, const void* map, const int (&coords)[5],
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(smem)),
      "l"(map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[3]), "r"(coords[4]),
      "r"(shared_address(barrier))
      : "memory");
}
// Loads with an L2 cache policy. Do not use it for boxes that several SMs read at about the same
// time: L2 merges their requests only when they carry no policy.
__device__ inline void tma_load(void* smem, const void* map, const int (&coords)[5],
                                uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(smem)),
      "l"(map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[3]), "r"(coords[4]),
      "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Loads with the policy only if `has_policy`.
__device__ inline void tma_load_policy_if(bool has_policy, void* smem, const void* map,
                                          const int (&coords)[5], uint64_t* barrier,
                                          uint64_t policy) {
  has_policy ? tma_load(smem, map, coords, barrier, policy) : tma_load(smem, map, coords, barrier);
}
// Loads the box to the same place in the shared memory of every block in the bit mask `ranks`, and
// counts its bytes at each block's `barrier`.
__device__ inline void tma_load_multicast(uint16_t ranks, void* smem, const void* map,
                                          const int (&coords)[5], uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(smem)),
      "l"(map), "r"(coords[0]), "r"(coords[1]), "r"(coords[2]), "r"(coords[3]), "r"(coords[4]),
      "r"(shared_address(barrier)), "h"(ranks)
      : "memory");
}

// Stores a box from shared memory that fence_proxy_async() has published. Elements outside the map
// are not written, except within the 16 bytes in which a row ends.
__device__ inline void tma_store(const void* map, const int (&coords)[5], const void* smem) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, map,
                                    coords, smem);
}
// Commits this thread's stores so far as one group.
__device__ inline void tma_store_commit_group() { ::cuda::ptx::cp_async_bulk_commit_group(); }
// Waits until at most kPending of this thread's groups still read shared memory.
template <int kPending>
__device__ void tma_store_wait_group_read() {
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<kPending>());
}

}  // namespace tiled::ptx
