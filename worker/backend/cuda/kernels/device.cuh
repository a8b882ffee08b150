// SPDX-License-Identifier: Apache-2.0
// Every kernel source includes this file. It brings CUDA (or the emulator, where the compiler is
// not nvcc), launches, groups of elements, and sums over a warp or block in a fixed order.
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

// Returns the block's shared memory; the launch has asked for sizeof(T) of it.
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

// Calls f(std::true_type) or f(std::false_type), so that a flag selects a kernel.
template <class F>
void Choose(bool flag, const F& f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}

// Calls f with the pointer that is set.
template <class F>
void To(const Output& output, const F& f) {
  output.bf16 != nullptr ? f(output.bf16) : f(output.f32);
}
template <class F>
void From(const Operand& operand, const F& f) {
  operand.bf16 != nullptr ? f(operand.bf16) : f(operand.f32);
}
// Returns the pointer of one type.
template <class T>
__host__ __device__ const T* As(const Operand& operand) {
  if constexpr (std::is_same_v<T, Bf16>) return operand.bf16;
  if constexpr (std::is_same_v<T, float>) return operand.f32;
}
template <class T>
__host__ __device__ T* As(const Output& output) {
  if constexpr (std::is_same_v<T, Bf16>) return output.bf16;
  if constexpr (std::is_same_v<T, float>) return output.f32;
}

// A thread's share of a row: neighbours that fill 16 bytes in the type in which they are stored.
template <int kCount>
struct alignas(16) Numbers {
  float v[kCount];
};
using Four = Numbers<4>;
template <class T>
inline constexpr int kIn16Bytes = 16 / static_cast<int>(sizeof(T));

// The words that one access reads or writes.
template <int kWords>
struct alignas(kWords * 4) Words {
  std::uint32_t w[kWords];
};

// Returns whether rows of n elements at these pointers consist of aligned groups. A null pointer is
// ignored.
template <int kCount, class... Pointers>
bool InGroups(std::int64_t n, const Pointers*... pointers) {
  return n % kCount == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}
template <class... Pointers>
bool InFours(std::int64_t n, const Pointers*... pointers) {
  return InGroups<4>(n, pointers...);
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

// Rounds to nearest, ties to even. The bits are those of the CPU's rounding, except for a NaN,
// which stays a NaN.
__device__ inline Bf16 Rounded(float x) {
  const std::uint32_t bits = BitsOf(x);
  const std::uint32_t rounded = x == x ? bits + (0x7fff + (bits >> 16 & 1)) : bits | 0x400000;
  return {static_cast<std::uint16_t>(rounded >> 16)};
}
// Returns two rounded neighbours as they lie in memory: the first is in the lower half.
__device__ inline std::uint32_t RoundedPair(float first, float second) {
#ifdef __CUDACC__
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return Rounded(first).bits | static_cast<std::uint32_t>(Rounded(second).bits) << 16;
#endif
}
__device__ inline float Widened(Bf16 x) {
  return FloatOf(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ inline float Widened(float x) { return x; }

// Returns x as it is stored in T.
template <class T>
__device__ inline T Stored(float x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return Rounded(x);
  } else {
    return x;
  }
}

// Returns the group of f(0), f(1), ...
template <int kCount = 4, class F>
__device__ inline Numbers<kCount> Each(const F& f) {
  Numbers<kCount> numbers;
#pragma unroll
  for (int k = 0; k < kCount; ++k) numbers.v[k] = f(k);
  return numbers;
}

// Loads elements i to i + kCount - 1 of p[0..n), with zeros beyond. kAligned: as InGroups found.
template <bool kAligned, int kCount = 4, class T>
__device__ inline Numbers<kCount> Load(const T* p, std::int64_t i, std::int64_t n) {
  if constexpr (!kAligned) {
    return Each<kCount>([&](int k) { return i + k < n ? Widened(p[i + k]) : 0.0F; });
  } else if constexpr (std::is_same_v<T, Bf16>) {
    const auto pairs = *reinterpret_cast<const Words<kCount / 2>*>(p + i);
    return Each<kCount>([&](int k) {
      return FloatOf(k % 2 == 0 ? pairs.w[k / 2] << 16 : pairs.w[k / 2] & 0xffff0000);
    });
  } else {
    Numbers<kCount> numbers;
#pragma unroll
    for (int k = 0; k < kCount; k += 4) {
      const Four four = *reinterpret_cast<const Four*>(p + i + k);
#pragma unroll
      for (int j = 0; j < 4; ++j) numbers.v[k + j] = four.v[j];
    }
    return numbers;
  }
}

template <bool kAligned, int kCount, class T>
__device__ inline void Store(T* p, std::int64_t i, std::int64_t n, const Numbers<kCount>& x) {
  if constexpr (!kAligned) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (i + k < n) p[i + k] = Stored<T>(x.v[k]);
    }
  } else if constexpr (std::is_same_v<T, Bf16>) {
    Words<kCount / 2> pairs;
#pragma unroll
    for (int k = 0; k < kCount; k += 2) pairs.w[k / 2] = RoundedPair(x.v[k], x.v[k + 1]);
    *reinterpret_cast<Words<kCount / 2>*>(p + i) = pairs;
  } else {
#pragma unroll
    for (int k = 0; k < kCount; k += 4) {
      *reinterpret_cast<Four*>(p + i + k) = Each([&](int j) { return x.v[k + j]; });
    }
  }
}

// Sums over the lanes whose numbers differ in bits below kLanes (all: 32). Every one of them gets
// the same bits.
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

// Sums over kThreads threads, which are the whole block if they are more than a warp. shared: one T
// for each of their warps; it is free again on return.
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
