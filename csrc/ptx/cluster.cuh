#pragma once
// Thread block clusters and their distributed shared memory: PTX ISA, "barrier.cluster", "mapa" and
// "st.async".

#include <cstdint>
#include <cuda/ptx>

#include "ptx/shared_address.cuh"

namespace tiled::ptx {

// The block's rank in its cluster, and the cluster's index along the grid's x.
__device__ inline unsigned cluster_rank() { return ::cuda::ptx::get_sreg_cluster_ctarank(); }
__device__ inline unsigned cluster_index() { return ::cuda::ptx::get_sreg_clusterid_x(); }

// No block may access another's shared memory before that block has started and initialized its
// barriers: all threads of all blocks arrive, and wait before they send.
__device__ inline void cluster_arrive() {
  ::cuda::ptx::barrier_cluster_arrive(::cuda::ptx::sem_relaxed);
}
__device__ inline void cluster_wait() { ::cuda::ptx::barrier_cluster_wait(); }
// __syncthreads() for all blocks. No block may exit while another may still access its memory.
__device__ inline void cluster_sync() {
  ::cuda::ptx::barrier_cluster_arrive();
  ::cuda::ptx::barrier_cluster_wait();
}

// Returns the address in the block of that rank that corresponds to `mine` in this block.
template <class T>
__device__ T* map_shared_rank(T* mine, unsigned rank) {
  return static_cast<T*>(__cluster_map_shared_rank(mine, static_cast<int>(rank)));
}
// Stores four floats at `to`, 16-byte aligned, in the block of that rank, and counts the 16 bytes
// at that block's `barrier`. For clusters of two blocks or more.
__device__ inline void st_async(float* to, const float (&x4)[4], uint64_t* barrier, unsigned rank) {
  ::cuda::ptx::st_async(static_cast<float*>(__cluster_map_shared_rank(to, rank)), x4,
                        static_cast<uint64_t*>(__cluster_map_shared_rank(barrier, rank)));
}
// Waits for st_async() of other blocks.
__device__ inline void mbarrier_wait_cluster(uint64_t* barrier, int parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire,
                                                ::cuda::ptx::scope_cluster, barrier, parity)) {
  }
}
// Arrives at `barrier` of the block of that rank. It publishes none of this thread's writes, which
// would take a fence for the whole cluster.
__device__ inline void mbarrier_arrive_cluster(uint64_t* barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 theirs;\n"
      "mapa.shared::cluster.u32 theirs, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [theirs];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

}  // namespace tiled::ptx
