#pragma once
// Blocks of a cluster, and what one leaves in the shared memory of another: PTX ISA,
// "barrier.cluster", "mapa" and "st.async".

#include <cstdint>
#include <cuda/ptx>

namespace tiled::device {

// This block among those of its cluster, and its cluster among those along the grid's x.
__device__ inline unsigned cluster_rank() { return ::cuda::ptx::get_sreg_cluster_ctarank(); }
__device__ inline unsigned cluster_index() { return ::cuda::ptx::get_sreg_clusterid_x(); }

// No block may send to another that has not started, with its barriers published: all threads of
// all blocks say so, and wait for the others before they send.
__device__ inline void say_started() {
  ::cuda::ptx::barrier_cluster_arrive(::cuda::ptx::sem_relaxed);
}
__device__ inline void wait_for_cluster() { ::cuda::ptx::barrier_cluster_wait(); }

// In a cluster of two blocks or more: stores four floats where the block of that rank has `to`, and
// counts the 16 bytes at its `barrier`. The address is a multiple of 16.
__device__ inline void send(float* to, const float (&four)[4], uint64_t* barrier, unsigned rank) {
  ::cuda::ptx::st_async(static_cast<float*>(__cluster_map_shared_rank(to, rank)), four,
                        static_cast<uint64_t*>(__cluster_map_shared_rank(barrier, rank)));
}
// Waits for what other blocks send.
__device__ inline void wait_for_sent(uint64_t* barrier, int parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire,
                                                ::cuda::ptx::scope_cluster, barrier, parity)) {
  }
}

}  // namespace tiled::device
