// SPDX-License-Identifier: Apache-2.0
// Tests the emulated kernel that adds the sums of two products in one launch.
#include "worker/backend/cuda/emulator/kernel_testing.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

std::int64_t LaunchesOf(const AddSums& op) {
  std::int64_t launches = 0;
  emulator::CountGrids(&launches);
  Launch(op, {});
  emulator::CountGrids(nullptr);
  return launches;
}

// The lengths are around groups of four and blocks of 256 threads with four each.
TEST(CudaKernels, AddsTwoVectorsInOneLaunchWithTheBitsOfAdd) {
  for (const std::int64_t first : {0, 1, 12, 1024, 2304}) {
    for (const std::int64_t second : {0, 3, 131, 3072}) {
      if (first + second == 0) continue;
      Check(Name("vectors", {first, second}), -1, [&](Backend& backend, Tensors& t) {
        const auto vector = [&t](std::int64_t count) {
          return AddSums::Vector{
              .addends = t.Random(count), .sums = t.Random(count), .count = count};
        };
        const AddSums op{vector(first), vector(second)};
        Result expected, result;
        for (const AddSums::Vector& v : {op.first, op.second}) {
          float* const sums = t.Unset(v.count);
          RunOp(backend, Add{.a = v.sums, .b = v.addends, .output = sums, .count = v.count});
          expected.Add(sums, v.count);
        }
        EXPECT_EQ(LaunchesOf(op), 1);
        Launch(op, {});
        for (const AddSums::Vector& v : {op.first, op.second}) result.Add(v.sums, v.count);
        EXPECT_TRUE(SameBits(result.values, expected.values)) << first << " " << second;
        return result;
      });
    }
  }
}

TEST(CudaKernels, LaunchesNothingWhereNoSumsAreToBeAdded) { EXPECT_EQ(LaunchesOf({}), 0); }

}  // namespace
}  // namespace takt::backend::cuda
