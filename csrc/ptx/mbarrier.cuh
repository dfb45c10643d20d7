#pragma once
// Barriers in shared memory that count arrivals and bytes: PTX ISA, "mbarrier".

#include <cstdint>
#include <cuda/ptx>

#include "ptx/shared_address.cuh"

namespace tiled::ptx {

// `arrivals` threads complete a phase; phases have parities 0, 1, 0, ...
__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  ::cuda::ptx::mbarrier_init(barrier, arrivals);
}
// After all mbarrier_init(), before a __syncthreads(): makes them visible to TMA and the cluster.
__device__ inline void fence_mbarrier_init() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}
// The barriers of a pipeline: `producers` arrivals fill a stage, `consumers` arrivals empty it.
__device__ inline void mbarrier_init_stages(int stages, uint64_t* full, int producers,
                                            uint64_t* empty, int consumers) {
  for (int stage = 0; stage < stages; ++stage) {
    mbarrier_init(&full[stage], producers);
    mbarrier_init(&empty[stage], consumers);
  }
}

__device__ inline void mbarrier_arrive(uint64_t* barrier) { ::cuda::ptx::mbarrier_arrive(barrier); }
// Arrives, and keeps the phase open until `bytes` have been copied.
__device__ inline void arrive_expect_tx(uint64_t* barrier, int bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared, barrier, bytes);
}
// Arrives at the barrier once this thread's earlier cp.async copies are complete; counts as one of
// the expected arrivals: PTX ISA, "cp.async.mbarrier.arrive".
__device__ inline void cp_async_mbarrier_arrive_noinc(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Spins until the phase of that parity is complete.
__device__ inline void mbarrier_wait(uint64_t* barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
#else
  while (!::cuda::ptx::mbarrier_test_wait_parity(barrier, parity)) {
  }
#endif
}
// mbarrier_wait(), but it sleeps between polls, which leaves issue slots to the other warps.
__device__ inline void mbarrier_wait_sleeping(uint64_t* barrier, int parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) __nanosleep(500);
}

// Makes this thread's writes to shared memory visible to the async proxy, which wgmma and TMA read
// and write through: PTX ISA, "Async proxy".
__device__ inline void fence_proxy_async() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

// A warp arrives at `empty` when all of its lanes have read a stage. The fence is needed: without
// it, loads issued before the arrival may still be outstanding when TMA refills the stage.
__device__ inline void consumer_release(uint64_t* empty) {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
}
// The same by every thread that has read the stage, for a barrier that counts threads. If threads
// load from the stage themselves, compute-sanitizer sees no order between a lane's loads and
// another lane's arrival.
__device__ inline void thread_release(uint64_t* empty) {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  mbarrier_arrive(empty);
}

// A thread's place in a pipeline: a stage, and the parity of that stage's current phase.
struct PipelineState {
  int stages, stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

}  // namespace tiled::ptx
