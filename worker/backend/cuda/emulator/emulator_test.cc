// SPDX-License-Identifier: Apache-2.0
// Tests that barriers, shuffles and shared memory do what CUDA's do, and that what CUDA leaves open
// ends the process or differs between orders of threads.
#include "worker/backend/cuda/emulator/emulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/cuda/kernels/device.cuh"

namespace takt::emulator {
namespace {

using backend::cuda::LaunchKernel;
using backend::cuda::Shared;

constexpr unsigned kThreads = 64;
constexpr ThreadOrder kOrders[] = {ThreadOrder::kForward, ThreadOrder::kBackward,
                                   ThreadOrder::kShuffled};

struct Numbers {
  float values[kThreads];
};

// output[block * kThreads + t] becomes what the next thread has put into shared memory.
void NextOf(float* output, bool with_barrier) {
  auto& shared = Shared<Numbers>();
  shared.values[threadIdx.x] = static_cast<float>(blockIdx.x * kThreads + threadIdx.x);
  if (with_barrier) __syncthreads();
  output[blockIdx.x * kThreads + threadIdx.x] = shared.values[(threadIdx.x + 1) % kThreads];
}

std::vector<float> RunNextOf(ThreadOrder order, bool with_barrier) {
  std::vector<float> output(2 * kThreads);
  SetThreadOrder(order);
  LaunchKernel(NextOf, {{2}, kThreads, sizeof(Numbers)}, nullptr, output.data(), with_barrier);
  return output;
}

TEST(Emulator, ThreadsSeeAcrossABarrierWhatOthersWrote) {
  for (const ThreadOrder order : kOrders) {
    const std::vector<float> output = RunNextOf(order, true);
    for (unsigned i = 0; i < output.size(); ++i) {
      const unsigned block = i / kThreads;
      ASSERT_EQ(output[i], static_cast<float>(block * kThreads + (i + 1) % kThreads));
    }
  }
}

TEST(Emulator, AMissingBarrierShowsAsNanThatDependsOnTheOrder) {
  const auto nans = [](ThreadOrder order) {
    unsigned count = 0;
    for (const float value : RunNextOf(order, false)) count += std::isnan(value) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(nans(ThreadOrder::kForward), 2 * (kThreads - 1));
  EXPECT_EQ(nans(ThreadOrder::kBackward), 2);
}

void Shuffles(unsigned* output) {
  const unsigned thread = threadIdx.x;
  output[thread] = __shfl_xor_sync(0xffffffff, thread, 5);
}

TEST(Emulator, ShufflesStayInTheWarp) {
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order);
    std::vector<unsigned> output(kThreads);
    LaunchKernel(Shuffles, {{1}, kThreads, 0}, nullptr, output.data());
    for (unsigned t = 0; t < kThreads; ++t) ASSERT_EQ(output[t], t ^ 5U);
  }
}

TEST(Emulator, GridsHaveThreeDimensions) {
  std::vector<int> seen(2 * 3 * 4);
  RunGrid({{2, 3, 4}, 32, 0}, [&] {
    if (threadIdx.x == 0) ++seen[(blockIdx.z * 3 + blockIdx.y) * 2 + blockIdx.x];
  });
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

// Returns the blocks of a grid as they come.
std::vector<unsigned> OrderOfBlocks(ThreadOrder order) {
  std::vector<unsigned> blocks;
  SetThreadOrder(order);
  RunGrid({{20}, 32, 0}, [&] {
    if (threadIdx.x == 0) blocks.push_back(blockIdx.x);
  });
  return blocks;
}

TEST(Emulator, BlocksRunInTheOrderOfTheTest) {
  std::vector<unsigned> ascending(20);
  std::iota(ascending.begin(), ascending.end(), 0U);
  EXPECT_EQ(OrderOfBlocks(ThreadOrder::kForward), ascending);
  EXPECT_EQ(OrderOfBlocks(ThreadOrder::kBackward),
            std::vector<unsigned>(ascending.rbegin(), ascending.rend()));
  std::vector<unsigned> shuffled = OrderOfBlocks(ThreadOrder::kShuffled);
  EXPECT_NE(shuffled, ascending);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, ascending);
}

TEST(Emulator, ACountThatReachesItsMostBeginsAgain) {
  unsigned count = 0;
  for (const unsigned before : {0U, 1U, 2U, 0U}) EXPECT_EQ(atomicInc(&count, 2), before);
}

// The first blocks of the order wait for the last one, so all of them must run at once.
TEST(Emulator, BlocksThatRunAtOnceSeeEachOtherWrite) {
  constexpr unsigned kBlocks = 3;
  SetBlocksAtOnce(kBlocks);
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order);
    unsigned arrived = 0;
    RunGrid({{kBlocks}, kThreads, sizeof(Numbers)}, [&] {
      auto& shared = Shared<Numbers>();
      shared.values[threadIdx.x] = static_cast<float>(blockIdx.x);
      if (threadIdx.x == 0) {
        ++arrived;
        while (arrived < kBlocks) __nanosleep(100);
      }
      __syncthreads();
      ASSERT_EQ(arrived, kBlocks);
      ASSERT_EQ(shared.values[kThreads - 1 - threadIdx.x], static_cast<float>(blockIdx.x));
    });
  }
  SetBlocksAtOnce(1);
}

TEST(EmulatorDeathTest, EndsWhereADeviceMightHang) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](unsigned threads, const std::function<void()>& body) {
    RunGrid({{1}, threads, 0}, body);
  };
  EXPECT_DEATH(run(64,
                   [] {
                     if (threadIdx.x < 32) __syncthreads();
                   }),
               "different barriers, or some have ended");
  EXPECT_DEATH(run(32, [] { __shfl_xor_sync(0xffff, 1, 1); }), "part of a warp");
  EXPECT_DEATH(run(33, [] {}), "no number of warps");
  EXPECT_DEATH(run(32,
                   [] {
                     while (true) __nanosleep(100);
                   }),
               "all blocks that run wait for others");
}

}  // namespace
}  // namespace takt::emulator
