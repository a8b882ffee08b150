// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/discrete_backend.h"

#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsNan;

std::span<const std::byte> BytesOf(const Floats& values) {
  return std::as_bytes(std::span(values));
}

class Discrete : public ::testing::TestWithParam<bool> {
 protected:
  Buffer OnDevice(const Floats& values) {
    Buffer buffer = backend_->Allocate(values.size() * sizeof(float), MemoryKind::kScratch).value();
    EXPECT_TRUE(backend_->CopyFromHost(BytesOf(values), buffer.data()).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return buffer;
  }
  static absl::Status Fetch(MemoryBackend& backend, const Buffer& buffer, Floats& values) {
    return backend.CopyToHost(buffer.data(), std::as_writable_bytes(std::span(values)));
  }
  Floats OnHost(const Buffer& buffer) {
    Floats values(buffer.bytes() / sizeof(float));
    EXPECT_TRUE(Fetch(*backend_, buffer, values).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return values;
  }

  MemoryLedger ledger_;
  const std::unique_ptr<BackendFactory> device_ =
      CreateDiscreteBackends({.lazy = GetParam(), .ledger = &ledger_});
  const std::unique_ptr<Backend> backend_ = device_->CreateCompute().value();
};
INSTANTIATE_TEST_SUITE_P(, Discrete, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Lazy" : "Eager"; });

using DiscreteDeathTest = Discrete;
INSTANTIATE_TEST_SUITE_P(, DiscreteDeathTest, ::testing::Values(true));

TEST_P(DiscreteDeathTest, EndsWhoeverTouchesItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Buffer buffer = backend_->Allocate(64, MemoryKind::kScratch).value();
  EXPECT_DEATH(std::memset(buffer.data(), 1, 64), "");
}

// The tensors of a small head.
struct HeadTensors {
  static constexpr std::int64_t kRows = 5, kVocab = 7, kInner = 9;

  const float* a = nullptr;
  const float* b = nullptr;
  const std::int32_t* targets = nullptr;
  float* logits = nullptr;
  SoftmaxPart* parts = nullptr;
  SoftmaxRow* softmax = nullptr;
  double* loss_sum = nullptr;

  void Compute(Backend& backend) const {
    const auto run = [&](const Op& op) { EXPECT_EQ(backend.Run(op).message(), ""); };
    run(Matmul{.a = a, .b = b, .c = logits, .m = kRows, .n = kVocab, .k = kInner});
    run(SoftmaxBlock{
        .logits = logits, .targets = targets, .parts = parts, .rows = kRows, .columns = kVocab});
    run(CrossEntropy{.parts = parts,
                     .targets = targets,
                     .softmax = softmax,
                     .loss_sum = loss_sum,
                     .rows = kRows,
                     .blocks = 1});
    run(CrossEntropyGradient{.logits = logits,
                             .targets = targets,
                             .parts = parts,
                             .softmax = softmax,
                             .rows = kRows,
                             .columns = kVocab});
  }
};

TEST_P(Discrete, ComputesWhatTheCpuDoes) {
  constexpr std::int64_t kRows = HeadTensors::kRows, kVocab = HeadTensors::kVocab;
  const Floats a = Random(kRows * HeadTensors::kInner, 1),
               b = Random(HeadTensors::kInner * kVocab, 2);
  const std::vector<std::int32_t> targets = RandomTokens(kRows, kVocab, 3);
  Floats expected = Unset(kRows * kVocab);
  double expected_loss = 0;
  SoftmaxPart parts[kRows];
  SoftmaxRow softmax[kRows];
  HeadTensors{a.data(), b.data(), targets.data(), expected.data(), parts, softmax, &expected_loss}
      .Compute(*CreateOrDie({}));

  const Buffer device_a = OnDevice(a), device_b = OnDevice(b);
  const Buffer logits = OnDevice(Unset(kRows * kVocab));
  const auto allocate = [&](std::size_t bytes) {
    return backend_->Allocate(bytes, MemoryKind::kScratch).value();
  };
  const Buffer device_targets = allocate(targets.size() * sizeof(std::int32_t));
  const Buffer device_parts = allocate(sizeof parts), device_softmax = allocate(sizeof softmax);
  ASSERT_TRUE(
      backend_->CopyFromHost(std::as_bytes(std::span(targets)), device_targets.data()).ok());
  const Buffer loss = backend_->AllocateHost(sizeof(double)).value();
  auto* const loss_sum = reinterpret_cast<double*>(loss.data());
  HeadTensors{device_a.floats(),
              device_b.floats(),
              reinterpret_cast<const std::int32_t*>(device_targets.data()),
              logits.floats(),
              reinterpret_cast<SoftmaxPart*>(device_parts.data()),
              reinterpret_cast<SoftmaxRow*>(device_softmax.data()),
              loss_sum}
      .Compute(*backend_);
  EXPECT_EQ(OnHost(logits), expected);
  EXPECT_EQ(*loss_sum, expected_loss);
}

TEST_P(Discrete, RefusesMemoryOfTheHost) {
  Floats host(4);
  const Buffer buffer = OnDevice(host);
  EXPECT_THAT(
      backend_->Run(Copy{.input = host.data(), .output = buffer.floats(), .count = 4}).message(),
      HasSubstr("is no memory of the device"));
  EXPECT_THAT(
      backend_->CopyFromHost(BytesOf(host), reinterpret_cast<std::byte*>(host.data())).message(),
      HasSubstr("is no memory of the device"));
  EXPECT_THAT(backend_->Run(Fill{.output = nullptr, .count = 4}).message(),
              HasSubstr("output is null"));
}

// The copy reads the memory after its buffer ended.
TEST_P(Discrete, FreesMemoryInTheOrderOfWork) {
  const Buffer host = backend_->AllocateHost(8).value();
  {
    const Buffer buffer = backend_->AllocateInOrder(8, MemoryKind::kScratch).value();
    ASSERT_TRUE(backend_->Run(Fill{.output = buffer.floats(), .value = 3, .count = 2}).ok());
    ASSERT_TRUE(backend_->CopyToHost(buffer.data(), {host.data(), 8}).ok());
    EXPECT_EQ(ledger_.Read()[MemoryKind::kScratch], AllocatedBytes(8));
  }
  ASSERT_TRUE(backend_->Synchronize().ok());
  EXPECT_THAT(host.float_span(), Each(3));
  EXPECT_EQ(ledger_.Read().total(), 0);
}

TEST_P(Discrete, StreamsWaitForEachOther) {
  const std::unique_ptr<MemoryBackend> other = device_->CreateMemory(StreamKind::kTransfer).value();
  const Buffer buffer = OnDevice(Floats(1000, 1));
  const std::unique_ptr<Event> written = backend_->stream()->CreateEvent().value();
  for (float value = 2; value < 50; ++value) {
    ASSERT_TRUE(backend_->Run(Fill{.output = buffer.floats(), .value = value, .count = 1000}).ok());
    ASSERT_TRUE(backend_->stream()->Record(*written).ok());
    ASSERT_TRUE(other->stream()->Await(*written).ok());
    Floats values(1000);
    ASSERT_TRUE(Fetch(*other, buffer, values).ok());
    const std::unique_ptr<Event> read = other->stream()->CreateEvent().value();
    ASSERT_TRUE(other->stream()->Record(*read).ok());
    ASSERT_TRUE(read->Wait().ok());
    EXPECT_EQ(values, Floats(1000, value));
    EXPECT_LE(written->Nanos().value(), read->Nanos().value());
  }
}

TEST_P(Discrete, AnEventNeverRecordedIsReached) {
  const std::unique_ptr<Event> event = backend_->stream()->CreateEvent().value();
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_TRUE(backend_->stream()->Await(*event).ok());
  EXPECT_TRUE(backend_->Synchronize().ok());
}

TEST_P(Discrete, ReplaysWhatWasRecorded) {
  const Buffer sum = OnDevice(Floats(3, 0)), one = OnDevice(Floats(3, 1));
  const auto add = [&] {
    return backend_->Run(
        Add{.a = sum.floats(), .b = one.floats(), .output = sum.floats(), .count = 3});
  };
  std::unique_ptr<Recording> recording = backend_->recorder()->Record(add).value();
  EXPECT_EQ(OnHost(sum), Floats(3, 0)) << "it was done, too";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(recording->Replay().ok());
  ASSERT_TRUE(add().ok());
  recording.reset();  // while it may be under way
  EXPECT_EQ(OnHost(sum), Floats(3, 4));
}

TEST_P(Discrete, RecordsNothingButOps) {
  Floats host(4);
  const Buffer buffer = OnDevice(host);
  const auto refused = [&](absl::FunctionRef<absl::Status()> ops) {
    const absl::Status status = backend_->recorder()->Record(ops).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  };
  refused([&] { return backend_->CopyFromHost(BytesOf(host), buffer.data()); });
  refused([&] { return Fetch(*backend_, buffer, host); });
  refused([&] { return backend_->Synchronize(); });
  refused([&] { return backend_->Allocate(4, MemoryKind::kScratch).status(); });
  refused([&] { return backend_->recorder()->Record([] { return absl::OkStatus(); }).status(); });
  const Fill fill{.output = buffer.floats(), .value = 2, .count = 4};
  const absl::Status failed = absl::InternalError("half way");
  EXPECT_EQ(backend_->recorder()
                ->Record([&] {
                  EXPECT_TRUE(backend_->Run(fill).ok());
                  return failed;
                })
                .status(),
            failed);
  EXPECT_EQ(OnHost(buffer), host);
  ASSERT_TRUE(backend_->Run(fill).ok());
  EXPECT_EQ(OnHost(buffer), Floats(4, 2)) << "it still records";
}

TEST(PreparedDevice, RunsOnlyWhatItWasPreparedFor) {
  const std::unique_ptr<BackendFactory> device = CreateDiscreteBackends({.prepared_only = true});
  const std::unique_ptr<Backend> backend = device->CreateCompute().value();
  const Buffer input = backend->Allocate(64, MemoryKind::kScratch).value();
  const Buffer output = backend->Allocate(64, MemoryKind::kScratch).value();
  const auto product = [&](std::int64_t m, std::int64_t at, const float* bias) {
    return Matmul{.a = input.floats(),
                  .b = input.floats() + 4,
                  .c = output.floats() + at,
                  .bias = bias,
                  .m = m,
                  .n = 2,
                  .k = 2};
  };
  ASSERT_TRUE(backend->Prepare(product(2, 0, nullptr)).ok());
  EXPECT_TRUE(backend->Run(product(2, 0, nullptr)).ok());
  EXPECT_TRUE(backend->Run(product(2, 4, nullptr)).ok()) << "as much aligned";
  for (const Matmul& other :
       {product(3, 0, nullptr), product(2, 1, nullptr), product(2, 0, input.floats() + 8)}) {
    const absl::Status refused = backend->Run(other);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("not prepared"));
  }
  EXPECT_TRUE(backend->Run(Fill{.output = output.floats(), .count = 3}).ok());
  EXPECT_TRUE(backend->Synchronize().ok());
}

TEST(PreparedDevice, MakesMemoryInOrderOnceItComputes) {
  const std::unique_ptr<BackendFactory> device = CreateDiscreteBackends({.prepared_only = true});
  const std::unique_ptr<Backend> backend = device->CreateCompute().value();
  const Buffer tensor = backend->Allocate(64, MemoryKind::kScratch).value();
  const Matmul product{.a = tensor.floats(),
                       .b = tensor.floats() + 4,
                       .c = tensor.floats() + 8,
                       .m = 2,
                       .n = 2,
                       .k = 2};
  ASSERT_TRUE(backend->Prepare(product).ok());
  EXPECT_TRUE(backend->Allocate(64, MemoryKind::kScratch).ok());
  ASSERT_TRUE(backend->Run(product).ok());
  EXPECT_EQ(backend->Allocate(64, MemoryKind::kScratch).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(backend->AllocateInOrder(64, MemoryKind::kScratch).ok());
  EXPECT_TRUE(backend->Synchronize().ok());
}

TEST(NewMemory, ShowsThatNobodyWroteIt) {
  const std::unique_ptr<BackendFactory> device = CreateDiscreteBackends({});
  const std::unique_ptr<Backend> backend = device->CreateCompute().value();
  constexpr std::int64_t kCount = 4;
  const auto sum_with = [&](const Buffer& written, const Buffer& other) {
    const Buffer output = backend->Allocate(kCount * sizeof(float), MemoryKind::kScratch).value();
    EXPECT_TRUE(backend->Run(Fill{.output = written.floats(), .value = 1, .count = kCount}).ok());
    EXPECT_TRUE(backend
                    ->Run(Add{.a = written.floats(),
                              .b = other.floats(),
                              .output = output.floats(),
                              .count = kCount})
                    .ok());
    Floats values(kCount);
    EXPECT_TRUE(backend->CopyToHost(output.data(), std::as_writable_bytes(std::span(values))).ok());
    EXPECT_TRUE(backend->Synchronize().ok());
    return values;
  };
  for (const MemoryKind kind : {MemoryKind::kStash, MemoryKind::kMessages, MemoryKind::kScratch}) {
    const Buffer one = backend->Allocate(kCount * sizeof(float), kind).value();
    const Buffer two = backend->Allocate(kCount * sizeof(float), kind).value();
    EXPECT_THAT(sum_with(one, two), Each(IsNan())) << Name(kind);
    EXPECT_EQ(sum_with(one, one), Floats(kCount, 2)) << Name(kind);
  }
  const Buffer moments = backend->Allocate(kCount * sizeof(float), MemoryKind::kOptimizer).value();
  const Buffer weights = backend->Allocate(kCount * sizeof(float), MemoryKind::kWeights).value();
  EXPECT_EQ(sum_with(moments, weights), Floats(kCount, 1)) << "they are zeroed";
}

TEST(LazyDevice, DoesNothingBeforeSomebodyWaits) {
  const std::unique_ptr<BackendFactory> device = CreateDiscreteBackends({.lazy = true});
  const std::unique_ptr<Backend> backend = device->CreateCompute().value();
  const Buffer host = backend->AllocateHost(8).value();
  const Buffer buffer = backend->Allocate(8, MemoryKind::kScratch).value();
  ASSERT_TRUE(backend->Run(Fill{.output = buffer.floats(), .value = 3, .count = 2}).ok());
  ASSERT_TRUE(backend->CopyToHost(buffer.data(), {host.data(), 8}).ok());
  EXPECT_EQ(host.floats()[1], 0);
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(host.floats()[1], 3);
}

}  // namespace
}  // namespace takt::backend::testing
