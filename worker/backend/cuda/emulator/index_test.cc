// SPDX-License-Identifier: Apache-2.0
// Runs the last block of kernels on tensors of more than 2^31 elements, as the logits of 65,536
// rows are. A product of sizes in 32 bits would reach other memory. The tensors are addresses
// without memory, except where the block reads and writes.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

constexpr std::int64_t kRows = 65'536, kColumns = 50'257, kStride = 50'304;
constexpr std::int64_t kCount = kRows * kStride;
static_assert(kCount > std::int64_t{1} << 31);

// Zeros, which take memory once they are touched.
template <class T>
class FarTensor {
 public:
  FarTensor()
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~FarTensor() {
    if (there()) munmap(data_, kBytes);
  }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;

  bool there() const { return data_ != MAP_FAILED; }
  T* data() const { return static_cast<T*>(data_); }
  T* last_row() const { return data() + (kRows - 1) * kStride; }

 private:
  static constexpr std::size_t kBytes = static_cast<std::size_t>(kCount) * sizeof(T);
  void* const data_;
};

class FarIndices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!logits_.there() || !floats_.there()) GTEST_SKIP() << "not that many addresses here";
    emulator::SetOnlyLastBlock(true);
    std::copy(row_.begin(), row_.end(), logits_.last_row());
  }
  void TearDown() override { emulator::SetOnlyLastBlock(false); }

  void RunLast(const Op& op) { RunOp(*backend_, op); }
  void RunWhole(const Op& op) {
    emulator::SetOnlyLastBlock(false);
    RunOp(*backend_, op);
    emulator::SetOnlyLastBlock(true);
  }
  static std::vector<std::uint16_t> Bits(const Bf16* data, std::int64_t count) {
    std::vector<std::uint16_t> bits;
    for (std::int64_t i = 0; i < count; ++i) bits.push_back(data[i].bits);
    return bits;
  }

  const std::unique_ptr<Backend> backend_ = CreateEmulatedBackend(ThreadOrder::kForward);
  const testing::Bf16s row_ = testing::NearestOf(testing::Random(kStride, 1));
  FarTensor<Bf16> logits_;
  FarTensor<float> floats_;
  std::vector<std::int32_t> targets_ = std::vector<std::int32_t>(kRows, 7);
};

TEST_F(FarIndices, Softmax) {
  std::vector<SoftmaxPart> parts(kRows);
  SoftmaxPart alone;
  RunLast(SoftmaxBlock{.logits = logits_.data(),
                       .targets = targets_.data(),
                       .parts = parts.data(),
                       .rows = kRows,
                       .columns = kColumns,
                       .stride = kStride});
  RunWhole(SoftmaxBlock{.logits = row_.data(),
                        .targets = targets_.data(),
                        .parts = &alone,
                        .rows = 1,
                        .columns = kColumns,
                        .stride = kStride});
  EXPECT_EQ(parts.back().max, alone.max);
  EXPECT_EQ(parts.back().sum, alone.sum);
  EXPECT_EQ(parts.back().target_logit, alone.target_logit);
}

TEST_F(FarIndices, GradientOfCrossEntropy) {
  std::vector<SoftmaxPart> parts(kRows);
  std::vector<SoftmaxRow> softmax(kRows);
  parts.back() = {1, 0, 0};
  softmax.back() = {0.5, 0, 1};
  testing::Bf16s alone = row_;
  RunLast(CrossEntropyGradient{.logits = logits_.data(),
                               .targets = targets_.data(),
                               .parts = parts.data(),
                               .softmax = softmax.data(),
                               .rows = kRows,
                               .columns = kColumns,
                               .stride = kStride});
  RunWhole(CrossEntropyGradient{.logits = alone.data(),
                                .targets = targets_.data(),
                                .parts = &parts.back(),
                                .softmax = &softmax.back(),
                                .rows = 1,
                                .columns = kColumns,
                                .stride = kStride});
  EXPECT_EQ(Bits(logits_.last_row(), kStride), Bits(alone.data(), kStride));
}

TEST_F(FarIndices, ElementwiseAndRounding) {
  constexpr std::int64_t kTail = 64;  // of the last block
  const testing::Floats inputs = testing::Random(kTail, 3);
  testing::Bf16s alone(kTail);
  std::copy(inputs.begin(), inputs.end(), floats_.data() + kCount - kTail);
  RunLast(GeluForward{.input = floats_.data(), .output = logits_.data(), .count = kCount});
  RunWhole(GeluForward{.input = inputs.data(), .output = alone.data(), .count = kTail});
  EXPECT_EQ(Bits(logits_.data() + kCount - kTail, kTail), Bits(alone.data(), kTail));

  const testing::Floats row = testing::Random(kStride, 2);
  std::copy(row.begin(), row.end(), floats_.last_row());
  emulator::SetThreadOrder(ThreadOrder::kForward);
  Launch(
      RoundBf16{
          .input = floats_.data(), .rounded = logits_.data(), .rows = kRows, .columns = kStride},
      {});
  EXPECT_EQ(Bits(logits_.last_row(), kStride), Bits(testing::NearestOf(row).data(), kStride));
}

TEST_F(FarIndices, SumOfSquaresAndFill) {
  constexpr std::int64_t kBlocks = (kCount + kSquaresPerBlock - 1) / kSquaresPerBlock;
  std::vector<double> sums(kBlocks);
  floats_.data()[kCount - 1] = 3;
  RunLast(SumOfSquares{.input = floats_.data(), .count = kCount, .block_sums = sums.data()});
  EXPECT_EQ(sums.back(), 9);
  RunLast(Fill{.output = floats_.data(), .value = 5, .count = kCount});
  EXPECT_EQ(floats_.data()[kCount - 1], 5);
}

}  // namespace
}  // namespace takt::backend::cuda
