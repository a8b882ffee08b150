// SPDX-License-Identifier: Apache-2.0
// Joins the two stages of a sum in one launch. The blocks of the first stage write partial sums,
// those of the second stage wait for all of them and add them up. Blocks take numbers in the order
// in which they start, and the last numbers are the second stage. So the blocks that wait are the
// last to start, and what they wait for runs already or is done: no wait depends on the order in
// which the device starts blocks, nor on how many it can run at a time.
//
// The block that ends last could add everything without a wait, but it would do so alone: one
// multiprocessor reads about 100 GB/s from L2, and a norm's backward leaves up to 512 partial sums
// of each column and output (LayerNorm of 768 columns: 6 MiB, 60 us). Here the second stage has as
// many blocks as it wants.
#pragma once

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

// The blocks of a launch. It has as many as both stages together.
struct TwoStages {
  std::uint32_t* counts = nullptr;  // of LaunchContext
  unsigned first = 0, second = 0;   // blocks; if second is 0, nothing is counted

  Blocks Launched(unsigned threads, std::size_t shared_bytes) const {
    return {{first + second}, threads, shared_bytes};
  }
};

// Returns the number of this block: of the first stage if it is below `first`. Each kernel calls it
// before anything else. shared: memory of the block for this alone.
__device__ inline unsigned StartBlock(const TwoStages& stages, unsigned* shared) {
  if (stages.second == 0) return blockIdx.x;
  // This count and the next become zero again at the last block.
  if (threadIdx.x == 0) *shared = atomicInc(&stages.counts[0], stages.first + stages.second - 1);
  __syncthreads();
  return *shared;
}

// A block of the first stage calls it when it has written its partial sums.
__device__ inline void EndFirstStage(const TwoStages& stages) {
  if (stages.second == 0) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();  // orders what all threads of the block have written before the count
  atomicInc(&stages.counts[1], stages.first + stages.second - 1);
}

// A block of the second stage calls it before it reads partial sums (LoadPastL1).
__device__ inline void WaitForFirstStage(const TwoStages& stages) {
  if (threadIdx.x == 0) {
    const volatile std::uint32_t* ended = &stages.counts[1];
    constexpr unsigned kNanoseconds = 100;
    while (*ended < stages.first) __nanosleep(kNanoseconds);
    __threadfence();
    // Only a block that waits no more counts, so the count is zero again when none waits.
    atomicInc(&stages.counts[1], stages.first + stages.second - 1);
  }
  __syncthreads();
}

// Loads what other blocks of the same launch have written. L1 may hold older contents.
__device__ inline Four LoadPastL1(const float* p) {
#ifdef __CUDACC__
  const float4 x = __ldcg(reinterpret_cast<const float4*>(p));
  return {{x.x, x.y, x.z, x.w}};
#else
  return Load<true>(p, 0, 4);
#endif
}
__device__ inline double LoadPastL1(const double* p) {
#ifdef __CUDACC__
  return __ldcg(p);
#else
  return *p;
#endif
}

}  // namespace takt::backend::cuda
