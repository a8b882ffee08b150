// SPDX-License-Identifier: Apache-2.0
// Multiplies to logits of more than 2^31 elements: the product of all rows must be that of the same
// rows in chunks. An index of 32 bits would write elsewhere.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "gtest/gtest.h"
#include "tests/gpu/gpu.h"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::cuda {
namespace {

constexpr std::int64_t kRows = 65'536, kColumns = 50'257, kStride = 50'304, kInner = 64;
constexpr std::int64_t kChunk = 8'192, kComparedRows = 16;

class FarProduct : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = gpu::OpenGpu();
    TAKT_SKIP_WITHOUT(device);
    device_ = *std::move(device);
    backend_ = device_->CreateCompute().value();
  }

  Buffer Allocate(std::int64_t bytes) {
    auto buffer = backend_->Allocate(static_cast<std::size_t>(bytes), MemoryKind::kScratch);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : Buffer();
  }
  template <class T>
  Buffer Upload(const std::vector<T>& values) {
    Buffer buffer = Allocate(std::ssize(values) * static_cast<std::int64_t>(sizeof(T)));
    EXPECT_TRUE(backend_->CopyFromHost(std::as_bytes(std::span(values)), buffer.data()).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return buffer;
  }
  testing::Bf16s Download(const Bf16* data, std::int64_t count) {
    testing::Bf16s values(static_cast<std::size_t>(count));
    EXPECT_TRUE(backend_
                    ->CopyToHost(reinterpret_cast<const std::byte*>(data),
                                 std::as_writable_bytes(std::span(values)))
                    .ok());
    EXPECT_EQ(backend_->Synchronize().message(), "");
    return values;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(FarProduct, OfAllRowsIsThatOfChunks) {
  const Buffer a = Upload(testing::NearestOf(testing::Random(kRows * kInner, 1)));
  const Buffer b = Upload(testing::Random(kInner * kColumns, 2));
  const Buffer packed =
      Allocate(layout::PackedElements(kInner, kColumns) * static_cast<std::int64_t>(sizeof(Bf16)));
  const auto halves = [](const Buffer& buffer) { return reinterpret_cast<Bf16*>(buffer.data()); };
  ASSERT_TRUE(
      backend_->Run(PackBf16{.b = b.floats(), .packed = halves(packed), .k = kInner, .n = kColumns})
          .ok());
  const auto multiply = [&](std::int64_t first, std::int64_t rows, const Buffer& logits) {
    const absl::Status run = backend_->Run(MatmulBf16{.a = halves(a) + first * kInner,
                                                      .b = halves(packed),
                                                      .c = halves(logits),
                                                      .c_stride = kStride,
                                                      .m = rows,
                                                      .n = kColumns,
                                                      .k = kInner});
    ASSERT_TRUE(run.ok()) << run;
  };
  constexpr auto kElement = static_cast<std::int64_t>(sizeof(Bf16));
  const Buffer whole = Allocate(kRows * kStride * kElement);
  const Buffer part = Allocate(kChunk * kStride * kElement);
  ASSERT_NE(whole.data(), nullptr);
  multiply(0, kRows, whole);
  for (std::int64_t first = 0; first < kRows; first += kChunk) {
    multiply(first, kChunk, part);
    const std::int64_t row = kChunk - kComparedRows;  // the last ones of the chunk
    const testing::Bf16s expected = Download(halves(part) + row * kStride, kComparedRows * kStride);
    const testing::Bf16s got =
        Download(halves(whole) + (first + row) * kStride, kComparedRows * kStride);
    for (std::int64_t i = 0; i < kComparedRows * kStride; ++i) {
      if (i % kStride >= kColumns) continue;
      // Another algorithm may sum in another order, which moves the rounding by one step.
      const auto at = static_cast<std::size_t>(i);
      ASSERT_NEAR(ToFloat(got[at]), ToFloat(expected[at]),
                  0x1p-7 * (1 + std::abs(ToFloat(expected[at]))))
          << "row " << first + row + i / kStride << ", column " << i % kStride;
    }
  }
}

}  // namespace
}  // namespace takt::backend::cuda
