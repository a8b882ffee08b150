// SPDX-License-Identifier: Apache-2.0
// The part of CUDA C++ that our kernels use, for a plain C++ compiler. A kernel runs on the
// caller's thread, block after block unless a test wants several at once (SetBlocksAtOnce). The
// threads of a block are fibers, which are switched at barriers, shuffles and sleeps only. nvcc
// compiles the same .cu files, and the host's compiler compiles them against this header
// (kernels/device.cuh chooses), so kernels are tested where there is no GPU.
//
// A passed test proves indices, bounds (with AddressSanitizer, since shared memory is exactly as
// large as was asked for), formulas, and that every thread of a block or warp comes to the same
// barriers. Shared memory is full of NaN when a block begins. Threads and blocks run in an order
// that the test chooses (ThreadOrder), so a result that depends on a missing barrier differs
// between the orders. A test cannot show races that give the same result in every order of whole
// runs between barriers, writes that other blocks see late (a missing fence, a reading from L1),
// differences of the device's own arithmetic (exp, contraction to FMA), limits of registers and
// shared memory, or speed.
//
// The emulator is narrower than CUDA on purpose. It ends the process with a message at a block of a
// number of threads that no warp divides, at a shuffle of part of a warp, at a thread that ends
// while others of its block wait at a barrier, and where all blocks that run wait for others.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): CUDA's own names.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct CUstream_st;
using cudaStream_t = CUstream_st*;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace takt::emulator {

// The order in which the blocks of a grid run, and the threads of a block between two barriers.
enum class ThreadOrder {
  kForward,
  kBackward,
  kShuffled,  // another one at every barrier, the same in every process
};
void SetThreadOrder(ThreadOrder order);

// Ends the process at a block with more shared memory.
void SetMostShared(std::size_t bytes);

// Grids run no block but their last one, so a test can place tensors in memory that is not there
// but for the end.
void SetOnlyLastBlock(bool only);

// So many blocks run at the same time, as far as a grid has them: at first one. When one ends, the
// next one of the order starts.
void SetBlocksAtOnce(unsigned count);

// Grids add one to *count each and run nothing, until it is null.
void CountGrids(std::int64_t* count);

struct Grid {
  dim3 blocks;
  unsigned threads = 0;          // of a block
  std::size_t shared_bytes = 0;  // of a block
};

// Runs body() as every thread of the grid.  Thread: one caller at a time.
void RunGrid(const Grid& grid, const std::function<void()>& body);

// The place of the thread that runs now.
struct Place {
  dim3 block, thread;
};
inline Place place;

void* SharedMemory();
void WaitForBlock();
void WaitForWarp();
void Sleep();  // other threads and blocks go on

inline constexpr unsigned kWarp = 32;

// Returns the values that all lanes of the warp gave, once all have given one.
std::array<std::uint64_t, kWarp> ExchangeAll(std::uint64_t value);

template <class T>
T Shuffle(T value, unsigned source) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = ExchangeAll(bits)[source];
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

[[noreturn]] void Die(const char* why);
inline void CheckWholeWarp(unsigned mask) {
  if (mask != 0xffffffff) Die("a shuffle or barrier of part of a warp");
}

}  // namespace takt::emulator

#define threadIdx (::takt::emulator::place.thread)
#define blockIdx (::takt::emulator::place.block)

inline void __syncthreads() { takt::emulator::WaitForBlock(); }

inline int __popc(unsigned bits) { return std::popcount(bits); }

inline unsigned atomicInc(unsigned* count, unsigned most) {
  const unsigned before = *count;
  *count = before >= most ? 0 : before + 1;
  return before;
}
inline void __threadfence() {}  // one thread runs all of it
inline void __nanosleep(unsigned /*nanoseconds*/) { takt::emulator::Sleep(); }

inline unsigned long long atomicAdd(unsigned long long* sum, unsigned long long value) {
  return (*sum += value) - value;
}

inline void __syncwarp(unsigned mask = 0xffffffff) {
  takt::emulator::CheckWholeWarp(mask);
  takt::emulator::WaitForWarp();
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  takt::emulator::CheckWholeWarp(mask);
  return takt::emulator::Shuffle(
      value, threadIdx.x % takt::emulator::kWarp ^ static_cast<unsigned>(lane_mask));
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
