#pragma once
// Blocks of a cluster, and what one leaves in the shared memory of another: PTX ISA,
// "barrier.cluster", "mapa", "st.async" and "cp.async.bulk.tensor".

#include <cstdint>
#include <cuda/ptx>

#include "device/shared.cuh"

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

// Arrives where the block of that rank has `barrier`. Nothing that this thread wrote is published:
// to say so to a whole cluster takes a fence.
__device__ inline void arrive_at(uint64_t* barrier, unsigned rank) {
  asm volatile(
      "{\n"
      ".reg .b32 theirs;\n"
      "mapa.shared::cluster.u32 theirs, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [theirs];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// Copies a box as copy_box() of pipeline.cuh does, to where each of those `blocks`, a bit a rank,
// has `smem`, and counts its bytes at each one's `barrier`.
__device__ inline void copy_box_to(uint16_t blocks, void* smem, const void* map, const int (&at)[5],
                                   uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(smem)),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
      "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}

// __syncthreads() for all blocks. No block may end while another may still send to it.
__device__ inline void sync_cluster() {
  ::cuda::ptx::barrier_cluster_arrive();
  ::cuda::ptx::barrier_cluster_wait();
}
// What the block of that rank has where this one has `mine`.
template <class T>
__device__ T* in_block_of(T* mine, unsigned rank) {
  return static_cast<T*>(__cluster_map_shared_rank(mine, static_cast<int>(rank)));
}

}  // namespace tiled::device
