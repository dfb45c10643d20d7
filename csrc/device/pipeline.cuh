#pragma once
// Shared memory filled by the copy engine, and the barriers that say when it is full and empty.

#include <cstdint>
#include <cuda/ptx>

#include "device/shared.cuh"

namespace tiled::device {

// Barriers, in shared memory. `arrivals` threads complete a phase; phases have parities 0, 1, 0, ..
__device__ inline void init_barrier(uint64_t* barrier, int arrivals) {
  ::cuda::ptx::mbarrier_init(barrier, arrivals);
}
// After all inits, before a __syncthreads().
__device__ inline void publish_barriers() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}
// Of a ring: so many arrivals fill a stage, and so many empty it.
__device__ inline void init_stages(int stages, uint64_t* full, int filling, uint64_t* empty,
                                   int emptying) {
  for (int stage = 0; stage < stages; ++stage) {
    init_barrier(&full[stage], filling);
    init_barrier(&empty[stage], emptying);
  }
}
__device__ inline void arrive(uint64_t* barrier) { ::cuda::ptx::mbarrier_arrive(barrier); }
// Arrives, and keeps the phase open until so many bytes have been copied.
__device__ inline void arrive_expecting(uint64_t* barrier, int bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared, barrier, bytes);
}
__device__ inline void wait(uint64_t* barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
#else
  while (!::cuda::ptx::mbarrier_test_wait_parity(barrier, parity)) {
  }
#endif
}

// Likewise, for one who has nothing to do meanwhile, and leaves the clocks to others.
__device__ inline void doze(uint64_t* barrier, int parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) __nanosleep(500);
}

// A stage of a ring of so many, and the parity of its phase.
struct Ring {
  int stages, stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// Of a warp that is all here, one thread, of which the compiler knows that it is alone: copies that
// any other thread asks for it issues in a loop over those that there may be. PTX ISA,
// "elect.sync".
__device__ inline bool elect() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}
// What all threads of a warp agree on, so that the compiler knows: it may be in uniform registers.
__device__ inline int uniform(unsigned x) {
  return static_cast<int>(__shfl_sync(0xffffffff, x, 0));
}

// Copies from global to shared memory, 16-byte aligned both, and counts the bytes at the barrier.
__device__ inline void copy(void* smem, const void* global, int bytes, uint64_t* barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, smem, global,
                             bytes, barrier);
}

// Likewise a box of a tensor map (kernels/tensor_map.h) whose first element is at `at`: PTX ISA,
// "cp.async.bulk.tensor".
__device__ inline void copy_box(void* smem, const void* map, const int (&at)[5],
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(smem)),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
      "r"(shared_address(barrier))
      : "memory");
}
// Likewise, kept in the L2 cache by a policy. Not for what several multiprocessors read at a time:
// L2 merges their requests only where they have no policy.
__device__ inline void copy_box(void* smem, const void* map, const int (&at)[5], uint64_t* barrier,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(smem)),
      "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
      "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Likewise, by a policy if it is the only time that anybody reads the box.
__device__ inline void copy_box_if_once(bool once, void* smem, const void* map, const int (&at)[5],
                                        uint64_t* barrier, uint64_t policy) {
  once ? copy_box(smem, map, at, barrier, policy) : copy_box(smem, map, at, barrier);
}

// The other way, where the copy engine sees what was written to `smem`. What is outside the map is
// not stored, but for the 16 bytes in which a line of it ends. A thread that has asked for some
// commits them together, and waits until all but so many of what it has committed have been read.
__device__ inline void store_box(const void* map, const int (&at)[5], const void* smem) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, map, at,
                                    smem);
}
__device__ inline void commit_stores() { ::cuda::ptx::cp_async_bulk_commit_group(); }
template <int kLeft>
__device__ void wait_for_stores_but() {
  ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<kLeft>());
}

// Makes what this thread wrote to shared memory visible to wgmma and the copy engine.
__device__ inline void publish_writes() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

// A warp says of a stage that the copy engine may fill it again, as its threads have read it.
// Without the fence a barrier may hear of it before loads that were asked for earlier have come:
// PTX ISA, "Async proxy".
__device__ inline void release(uint64_t* empty) {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(empty);
}

// __syncthreads() for `count` threads that use `barrier`, 1 to 15.
__device__ inline void sync_threads(int barrier, int count) {
  __barrier_sync_count(barrier, count);
}

// Likewise, but goes on without waiting for the others.
__device__ inline void arrive_threads(int barrier, int count) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Likewise, and whether any of them says so.
__device__ inline bool sync_threads_or(int barrier, int count, bool say) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "barrier.cta.red.or.pred q, %2, %3, p;\n"
      "selp.s32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<int>(say)), "r"(barrier), "r"(count)
      : "memory");
  return any != 0;
}

// A kernel launched to overlap the one before it may touch that one's results after this. Before
// Hopper none overlap.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel after this one start as room becomes free.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tiled::device
