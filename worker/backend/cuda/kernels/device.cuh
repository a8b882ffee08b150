// SPDX-License-Identifier: Apache-2.0
// What every kernel source begins with: CUDA, or the emulator where the compiler is not nvcc;
// launches; groups of four elements; sums over a warp or block in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "worker/backend/ops.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "worker/backend/cuda/emulator/emulator.h"
#endif

namespace takt::backend::cuda {

inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr int kWarpSize = 32;

struct Blocks {
  dim3 blocks;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
};

// Enqueues kernel(args...).
template <class... Parameters, class... Args>
void LaunchKernel(void (*kernel)(Parameters...), const Blocks& blocks,
                  [[maybe_unused]] cudaStream_t stream, const Args&... args) {
#ifdef __CUDACC__
  constexpr std::size_t kAlwaysAllowed = 48 << 10;
  if (blocks.shared_bytes > kAlwaysAllowed) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(blocks.shared_bytes));
  }
  kernel<<<blocks.blocks, blocks.threads, blocks.shared_bytes, stream>>>(args...);
#else
  emulator::RunGrid({blocks.blocks, blocks.threads, blocks.shared_bytes}, [&] { kernel(args...); });
#endif
}

// The block's shared memory, of which the launch has asked for sizeof(T).
template <class T>
__device__ inline T& Shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char shared_memory[];
  return *reinterpret_cast<T*>(shared_memory);
#else
  return *static_cast<T*>(emulator::SharedMemory());
#endif
}

__host__ __device__ constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
__host__ __device__ constexpr std::int64_t RoundUp(std::int64_t a, std::int64_t unit) {
  return CeilDiv(a, unit) * unit;
}

// Calls f(std::true_type) or f(std::false_type), so that a flag picks a kernel.
template <class F>
void Choose(bool flag, const F& f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}

// Calls f with the pointer that is there.
template <class F>
void To(const Output& output, const F& f) {
  output.bf16 != nullptr ? f(output.bf16) : f(output.f32);
}

// Four neighbours of a row: a thread's share of 16 bytes.
struct alignas(16) Four {
  float v[4];
};
struct alignas(8) FourBf16 {
  Bf16 v[4];
};

// Whether rows of n elements at these pointers (null: not there) are made of aligned groups.
template <class... Pointers>
bool InFours(std::int64_t n, const Pointers*... pointers) {
  return n % 4 == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}
template <class... Pointers>
bool InFours(std::int64_t n, const Output& output, const Pointers*... pointers) {
  return InFours(n, output.f32, output.bf16, pointers...);
}

__device__ inline std::uint32_t BitsOf(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

__device__ inline float FloatOf(std::uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// To nearest, ties to even; a NaN stays one. The bits of the CPU's rounding.
__device__ inline Bf16 Rounded(float x) {
  const std::uint32_t bits = BitsOf(x);
  const std::uint32_t rounded = x == x ? bits + (0x7fff + (bits >> 16 & 1)) : bits | 0x400000;
  return {static_cast<std::uint16_t>(rounded >> 16)};
}
__device__ inline float Widened(Bf16 x) {
  return FloatOf(static_cast<std::uint32_t>(x.bits) << 16);
}

// Elements i to i + 3 of p[0..n), zeros beyond. kFours: as InFours found.
template <bool kFours>
__device__ inline Four Load(const float* p, std::int64_t i, std::int64_t n) {
  if constexpr (kFours) {
    return *reinterpret_cast<const Four*>(p + i);
  } else {
    Four four = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k < n) four.v[k] = p[i + k];
    }
    return four;
  }
}

template <bool kFours>
__device__ inline Four Load(const Bf16* p, std::int64_t i, std::int64_t n) {
  FourBf16 four = {};
  if constexpr (kFours) {
    four = *reinterpret_cast<const FourBf16*>(p + i);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k < n) four.v[k] = p[i + k];
    }
  }
  return {{Widened(four.v[0]), Widened(four.v[1]), Widened(four.v[2]), Widened(four.v[3])}};
}

template <bool kFours>
__device__ inline void Store(float* p, std::int64_t i, std::int64_t n, const Four& four) {
  if constexpr (kFours) {
    *reinterpret_cast<Four*>(p + i) = four;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k < n) p[i + k] = four.v[k];
    }
  }
}

template <bool kFours>
__device__ inline void Store(Bf16* p, std::int64_t i, std::int64_t n, const Four& four) {
  const FourBf16 rounded = {
      {Rounded(four.v[0]), Rounded(four.v[1]), Rounded(four.v[2]), Rounded(four.v[3])}};
  if constexpr (kFours) {
    *reinterpret_cast<FourBf16*>(p + i) = rounded;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k < n) p[i + k] = rounded.v[k];
    }
  }
}

// f of the four places.
template <class F>
__device__ inline Four Each(const F& f) {
  return {{f(0), f(1), f(2), f(3)}};
}

// Over the lanes whose numbers differ in bits below kLanes (all: 32); every one of them gets the
// same bits.
template <int kLanes = kWarpSize, class T>
__device__ inline T WarpSum(T value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}
template <int kLanes = kWarpSize>
__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over kThreads threads, which are the whole block if they are more than a warp. shared: one T for
// each of their warps, free again on return.
template <int kThreads, class T>
__device__ inline T TeamSum(T value, T* shared) {
  value = WarpSum(value);
  if constexpr (kThreads > kWarpSize) {
    if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    value = 0;
#pragma unroll
    for (int warp = 0; warp < kThreads / kWarpSize; ++warp) value += shared[warp];
    __syncthreads();
  }
  return value;
}

}  // namespace takt::backend::cuda
