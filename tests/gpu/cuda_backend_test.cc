// SPDX-License-Identifier: Apache-2.0
// What only the GPU backend has: products against the CPU's, kernel plans, memory, streams.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/layout/packed_matrix.h"
#include "gmock/gmock.h"
#include "tests/gpu/gpu.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/op_testing.h"
#include "worker/backend/memory_ledger.h"
#include "worker/backend/plan_cache_text.h"

namespace takt::backend::cuda {
namespace {

using testing::ExpectNear;
using testing::Floats;
using testing::Random;
using testing::SumTolerance;
using testing::ToDoubles;

struct Shape {
  std::int64_t m, n, k;
};

class CudaBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = gpu::OpenGpu({.ledger = &ledger_, .tune = true});
    TAKT_SKIP_WITHOUT(device);
    device_ = *std::move(device);
    backend_ = device_->CreateCompute().value();
  }

  float* Upload(const Floats& values) {
    Buffer buffer = backend_->Allocate(values.size() * sizeof(float), MemoryKind::kScratch).value();
    EXPECT_TRUE(backend_->CopyFromHost(std::as_bytes(std::span(values)), buffer.data()).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    buffers_.push_back(std::move(buffer));
    return buffers_.back().floats();
  }
  Floats Download(const float* data, std::int64_t count) {
    Floats values(static_cast<std::size_t>(count));
    EXPECT_TRUE(backend_
                    ->CopyToHost(reinterpret_cast<const std::byte*>(data),
                                 std::as_writable_bytes(std::span(values)))
                    .ok());
    EXPECT_EQ(backend_->Synchronize().message(), "");
    return values;
  }

  // The product of random matrices on the device, and on the CPU.
  void ExpectProduct(const Shape& s, bool a_transposed, bool b_transposed, bool bias, bool addend) {
    const Floats a = Random(s.m * s.k, 1), b = Random(s.k * s.n, 2), row = Random(s.n, 3);
    Floats c = Random(s.m * s.n, 4);
    Matmul op{.a = Upload(a), .b = Upload(b), .c = Upload(c), .m = s.m, .n = s.n, .k = s.k};
    op.a_transposed = a_transposed;
    op.b_transposed = b_transposed;
    if (bias) op.bias = Upload(row);
    if (addend) op.addend = op.c;
    ASSERT_EQ(backend_->Run(op).message(), "");
    const Floats got = Download(op.c, s.m * s.n);
    op.a = a.data();
    op.b = b.data();
    op.c = c.data();
    if (bias) op.bias = row.data();
    if (addend) op.addend = c.data();
    ASSERT_TRUE(cpu_->Run(op).ok());
    ExpectNear(got, ToDoubles(c), 2 * SumTolerance(s.k, 2 * std::sqrt(static_cast<double>(s.k))),
               "c");
  }

  std::vector<Bf16> RandomBf16(std::int64_t count, unsigned seed) {
    std::vector<Bf16> halves;
    for (const float value : Random(count, seed))
      halves.push_back({static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)});
    return halves;
  }
  Bf16* UploadBf16(const std::vector<Bf16>& values) {
    Floats bits((values.size() + 1) / 2);
    std::memcpy(bits.data(), values.data(), values.size() * sizeof(Bf16));
    return reinterpret_cast<Bf16*>(Upload(bits));
  }
  Floats DownloadBf16(const Bf16* data, std::int64_t count) {
    Floats bits = Download(reinterpret_cast<const float*>(data), (count + 1) / 2);
    const auto* halves = reinterpret_cast<const Bf16*>(bits.data());
    Floats values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(Widened(halves[i]));
    return values;
  }
  static float Widened(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
  static Floats Widened(const std::vector<Bf16>& values) {
    Floats floats;
    for (const Bf16 value : values) floats.push_back(Widened(value));
    return floats;
  }
  // Of a result in bf16: three roundings of it, of its bias and of what it is made of.
  static double Bf16Tolerance(std::int64_t depth) { return 3 * 0x1p-8 * 4 * std::sqrt(depth); }

  void ExpectEpilogue(const Shape& s, Activation activation, bool has_bias) {
    const std::vector<Bf16> a = RandomBf16(s.m * s.k, 1), inner = RandomBf16(s.m * s.n, 5);
    const Floats weight = Random(s.k * s.n, 2), bias = Random(s.n, 3);
    const auto run = [&](Backend& backend, const Bf16* a_at, const float* weight_at,
                         const float* bias_at, Bf16* packed, Bf16* c, Bf16* inner_at) {
      ASSERT_EQ(
          backend.Run(PackBf16{.b = weight_at, .packed = packed, .k = s.k, .n = s.n}).message(),
          "");
      ASSERT_EQ(backend
                    .Run(MatmulBf16{.a = a_at,
                                    .b = packed,
                                    .c = c,
                                    .bias = has_bias ? bias_at : nullptr,
                                    .activation = activation,
                                    .inner = activation == Activation::kNone ? nullptr : inner_at,
                                    .m = s.m,
                                    .n = s.n,
                                    .k = s.k})
                    .message(),
                "");
    };
    const std::vector<Bf16> room(static_cast<std::size_t>(layout::PackedElements(s.k, s.n)));
    std::vector<Bf16> packed = room, c(static_cast<std::size_t>(s.m * s.n)), kept = inner;
    Bf16* const c_there = UploadBf16(c);
    Bf16* const inner_there = UploadBf16(inner);
    run(*backend_, UploadBf16(a), Upload(weight), Upload(bias), UploadBf16(room), c_there,
        inner_there);
    run(*cpu_, a.data(), weight.data(), bias.data(), packed.data(), c.data(), kept.data());
    ExpectNear(DownloadBf16(c_there, s.m * s.n), ToDoubles(Widened(c)), Bf16Tolerance(s.k), "c");
    if (activation != Activation::kNone) {
      ExpectNear(DownloadBf16(inner_there, s.m * s.n), ToDoubles(Widened(kept)), Bf16Tolerance(s.k),
                 "inner");
    }
  }

  void ExpectWeightGradient(const Shape& s, bool accumulate) {
    const std::vector<Bf16> a = RandomBf16(s.k * s.m, 1), b = RandomBf16(s.k * s.n, 2);
    Floats c = Random(s.m * s.n, 3), sums = Random(s.n, 4);
    MatmulTransposedBf16 op{.a = UploadBf16(a),
                            .b = UploadBf16(b),
                            .c = Upload(c),
                            .column_sums = Upload(sums),
                            .accumulate = accumulate,
                            .m = s.m,
                            .n = s.n,
                            .k = s.k};
    ASSERT_EQ(backend_->Run(op).message(), "");
    const Floats got = Download(op.c, s.m * s.n), got_sums = Download(op.column_sums, s.n);
    op.a = a.data();
    op.b = b.data();
    op.c = c.data();
    op.column_sums = sums.data();
    ASSERT_TRUE(cpu_->Run(op).ok());
    const double tolerance = 2 * SumTolerance(s.k, 2 * std::sqrt(static_cast<double>(s.k)));
    ExpectNear(got, ToDoubles(c), tolerance, "c");
    ExpectNear(got_sums, ToDoubles(sums), tolerance, "sums");
  }

  MemoryLedger ledger_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Backend> backend_;
  std::vector<Buffer> buffers_;  // freed before the device
  const std::unique_ptr<Backend> cpu_ = testing::CreateOrDie({.threads = 2});
};

TEST_F(CudaBackendTest, ProductsAgreeWithTheCpu) {
  for (const Shape s : {Shape{1, 1, 1}, Shape{1, 131, 48}, Shape{7, 12, 5}, Shape{300, 131, 33},
                        Shape{48, 70, 1100}, Shape{256, 512, 128}}) {
    for (int bits = 0; bits < 16; ++bits) {
      SCOPED_TRACE(::testing::Message() << s.m << "x" << s.n << "x" << s.k << " " << bits);
      ExpectProduct(s, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0);
    }
  }
}

// Both ways to do an epilogue against the CPU's, with rows that have gaps and whole vectors or not.
TEST_F(CudaBackendTest, EpiloguesAgreeWithTheCpu) {
  for (const bool fused : {false, true}) {
    buffers_.clear();
    backend_ = nullptr;
    device_ = gpu::OpenGpu({.ledger = &ledger_, .fused_epilogues = fused}).value();
    backend_ = device_->CreateCompute().value();
    for (const Shape s : {Shape{64, 128, 96}, Shape{300, 264, 136}, Shape{40, 61, 72}}) {
      for (const Activation activation :
           {Activation::kNone, Activation::kGelu, Activation::kGeluGrad}) {
        for (const bool bias : {false, true}) {
          if (bias && activation == Activation::kGeluGrad) continue;
          SCOPED_TRACE(::testing::Message()
                       << s.m << "x" << s.n << "x" << s.k << " activation "
                       << static_cast<int>(activation) << " bias " << bias << " fused " << fused);
          ExpectEpilogue(s, activation, bias);
        }
      }
      for (const bool accumulate : {false, true}) ExpectWeightGradient(s, accumulate);
    }
    buffers_.clear();
  }
}

// Also where they are recorded, and where ops were recorded in vain before.
TEST_F(CudaBackendTest, SumsThatWaitAreAddedOnceWithTheSameBits) {
  constexpr std::int64_t kM = 64, kN = 128, kK = 256;
  for (const bool fused : {false, true}) {
    SCOPED_TRACE(fused);
    buffers_.clear();
    backend_ = nullptr;
    device_ = gpu::OpenGpu({.ledger = &ledger_, .fused_epilogues = fused}).value();
    backend_ = device_->CreateCompute().value();
    const Floats old = Random(kN, 1);
    std::vector<MatmulTransposedBf16> ops;
    for (const unsigned seed : {2U, 3U}) {
      ops.push_back({.a = UploadBf16(RandomBf16(kK * kM, seed)),
                     .b = UploadBf16(RandomBf16(kK * kN, seed + 2)),
                     .c = Upload(Floats(kM * kN)),
                     .column_sums = Upload(old),
                     .accumulate = true,
                     .m = kM,
                     .n = kN,
                     .k = kK});
    }
    const auto run = [&]() -> absl::Status {
      for (const MatmulTransposedBf16& op : ops) RETURN_IF_ERROR(backend_->Run(op));
      return absl::OkStatus();
    };
    const auto sums = [&](absl::FunctionRef<absl::Status()> body) {
      for (const MatmulTransposedBf16& op : ops) {
        EXPECT_TRUE(backend_
                        ->CopyFromHost(std::as_bytes(std::span(old)),
                                       reinterpret_cast<std::byte*>(op.column_sums))
                        .ok());
      }
      EXPECT_EQ(body().message(), "");
      return std::pair(Download(ops[0].column_sums, kN), Download(ops[1].column_sums, kN));
    };
    const auto expected = sums(run);
    EXPECT_NE(expected.first, old);
    ops[0].sums_may_wait = true;
    for (const MatmulTransposedBf16& op : ops) ASSERT_EQ(backend_->Prepare(op).message(), "");
    const std::int64_t taken = ledger_.Read().total();
    EXPECT_EQ(sums(run), expected);
    EXPECT_EQ(ledger_.Read().total(), taken);
    Recorder& recorder = *backend_->recorder();
    EXPECT_FALSE(recorder
                     .Record([&]() -> absl::Status {
                       RETURN_IF_ERROR(backend_->Run(ops[0]));
                       return absl::CancelledError("in vain");
                     })
                     .ok());
    EXPECT_EQ(sums(run), expected);
    const std::unique_ptr<Recording> recording = recorder.Record(run).value();
    EXPECT_EQ(sums([&] { return recording->Replay(); }), expected);
  }
  buffers_.clear();
}

TEST_F(CudaBackendTest, AKernelPlanReadBackGivesTheSameBits) {
  const Floats a = Random(384 * 640, 1), b = Random(640 * 512, 2), bias = Random(512, 3);
  const auto multiply = [&] {
    Matmul op{.a = Upload(a), .b = Upload(b), .c = Upload(Floats(384 * 512))};
    op.bias = Upload(bias);
    op.m = 384;
    op.n = 512;
    op.k = 640;
    EXPECT_EQ(backend_->Run(op).message(), "");
    return Download(op.c, op.m * op.n);
  };
  const Floats first = multiply();
  const std::string text = PlanText(device_->plans().target(), device_->plans().plans());
  EXPECT_EQ(device_->plans().plans().size(), 1u);

  buffers_.clear();
  backend_ = nullptr;
  device_ = gpu::OpenGpu({.ledger = &ledger_, .tune = true}).value();
  backend_ = device_->CreateCompute().value();
  ASSERT_EQ(MergePlanText(text, "plan", device_->plans()).message(), "");
  device_->plans().Freeze();
  EXPECT_EQ(multiply(), first);
  EXPECT_EQ(PlanText(device_->plans().target(), device_->plans().plans()), text);

  Matmul other{.a = Upload(a), .b = Upload(b), .c = Upload(a), .m = 8, .n = 8, .k = 8};
  EXPECT_THAT(std::string(backend_->Run(other).message()),
              ::testing::HasSubstr("matmul 8x8x8 f32"));
}

TEST_F(CudaBackendTest, MemoryStaysAsItIsAfterTheFirstRound) {
  const auto round = [&] {
    ExpectProduct({256, 512, 128}, false, false, true, false);
    buffers_.clear();
  };
  round();
  const int reservations = device_->arena().num_reservations();
  const std::int64_t taken = ledger_.Read().total();
  for (int i = 0; i < 3; ++i) round();
  EXPECT_EQ(device_->arena().num_reservations(), reservations);
  EXPECT_EQ(ledger_.Read().total(), taken);
}

// With operands to round and sums to add.
TEST_F(CudaBackendTest, WhatWasPreparedForMakesNoMemory) {
  constexpr std::int64_t kM = 100, kN = 72, kK = 256;
  const Floats a = Random(kK * kM, 1), b = Random(kK * kN, 2);
  const MatmulTransposedBf16 op{.a = Upload(a),
                                .b = Upload(b),
                                .c = Upload(Floats(kM * kN)),
                                .accumulate = true,
                                .m = kM,
                                .n = kN,
                                .k = kK};
  const BiasGrad sums{.d_output = op.b, .d_bias = Upload(Floats(kN)), .rows = kK, .columns = kN};
  const auto allocations = [this] {
    return std::pair(device_->arena().num_reservations(), ledger_.Read().total());
  };
  const auto before = allocations();
  for (const Op& each : {Op(op), Op(sums)}) ASSERT_EQ(backend_->Prepare(each), absl::OkStatus());
  const auto prepared = allocations();
  EXPECT_NE(before, prepared);
  device_->plans().Freeze();
  for (const Op& each : {Op(op), Op(sums)}) EXPECT_EQ(backend_->Run(each), absl::OkStatus());
  EXPECT_EQ(backend_->Synchronize(), absl::OkStatus());
  EXPECT_EQ(allocations(), prepared);
}

TEST_F(CudaBackendTest, RefusesMoreThanTheDeviceHas) {
  const auto buffer = backend_->Allocate(std::size_t{1} << 46, MemoryKind::kStash);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()), ::testing::HasSubstr("of stash"));
  EXPECT_TRUE(backend_->Allocate(1024, MemoryKind::kStash).ok()) << "and goes on";
}

TEST_F(CudaBackendTest, AStreamWaitsForAnEventOfAnother) {
  const auto other = device_->CreateMemory(StreamKind::kTransfer).value();
  const std::int64_t count = std::int64_t{1} << 22;
  float* const data = Upload(Floats(static_cast<std::size_t>(count)));
  const auto begin = backend_->stream()->CreateEvent().value();
  const auto end = backend_->stream()->CreateEvent().value();
  ASSERT_TRUE(backend_->stream()->Record(*begin).ok());
  for (int i = 1; i <= 64; ++i) {
    ASSERT_TRUE(
        backend_->Run(Fill{.output = data, .value = static_cast<float>(i), .count = count}).ok());
  }
  ASSERT_TRUE(backend_->stream()->Record(*end).ok());
  ASSERT_TRUE(other->stream()->Await(*end).ok());
  Floats last(1);
  ASSERT_TRUE(other
                  ->CopyToHost(reinterpret_cast<std::byte*>(data + count - 1),
                               std::as_writable_bytes(std::span(last)))
                  .ok());
  ASSERT_TRUE(other->Synchronize().ok());
  EXPECT_EQ(last[0], 64);
  ASSERT_TRUE(end->Wait().ok());
  EXPECT_GT(end->Nanos().value(), begin->Nanos().value());
}

TEST_F(CudaBackendTest, RecordedOpsAreDoneAtEachReplay) {
  constexpr std::int64_t kRows = 64, kColumns = 48;
  float* const a = Upload(Random(kRows * kRows, 1));
  float* const b = Upload(Random(kRows * kColumns, 2));
  float* const sum = Upload(Floats(kRows * kColumns, 0));
  float* const row = Upload(Floats(kColumns, 0));
  // A product of cuBLASLt and an own kernel that needs scratch, both of which add.
  const auto add = [&]() -> absl::Status {
    RETURN_IF_ERROR(backend_->Run(
        Matmul{.a = a, .b = b, .c = sum, .addend = sum, .m = kRows, .n = kColumns, .k = kRows}));
    return backend_->Run(BiasGrad{
        .d_output = sum, .d_bias = row, .rows = kRows, .columns = kColumns, .accumulate = true});
  };
  const auto clear = [&] {
    ASSERT_TRUE(backend_->Run(Fill{.output = sum, .count = kRows * kColumns}).ok());
    ASSERT_TRUE(backend_->Run(Fill{.output = row, .count = kColumns}).ok());
  };
  for (int i = 0; i < 4; ++i) ASSERT_EQ(add().message(), "");
  const Floats expected = Download(row, kColumns);
  clear();
  auto recording = backend_->recorder()->Record(add);
  ASSERT_EQ(recording.status().message(), "");
  EXPECT_EQ(Download(row, kColumns), Floats(kColumns, 0)) << "it was done, too";
  for (int i = 0; i < 3; ++i) ASSERT_EQ((*recording)->Replay().message(), "");
  recording->reset();  // while it is under way
  ASSERT_EQ(add().message(), "");
  EXPECT_EQ(Download(row, kColumns), expected);
}

// Their launches have two stages, of which the second waits for the first, and count blocks. Two
// streams at a time count apart.
TEST_F(CudaBackendTest, SumsOverRowsHaveTheSameBitsEachTimeOnTwoStreams) {
  constexpr std::int64_t kRows = 20'000, kColumns = 768;
  const float* const d_output = Upload(Random(kRows * kColumns, 1));
  const float* const x = Upload(Random(kRows * kColumns, 2));
  const float* const of_rows = Upload(Random(kRows, 3));
  const float* const weight = Upload(Random(kColumns, 4));
  struct Lane {
    std::unique_ptr<Backend> backend;
    LayerNormBackwardInput norm;
    BiasGrad bias;
  };
  std::vector<Lane> lanes(2);
  for (Lane& lane : lanes) {
    lane.backend = device_->CreateCompute().value();
    const auto sum = [&] { return Upload(Floats(kColumns)); };
    lane.norm = {.d_output = d_output,
                 .x = x,
                 .weight = weight,
                 .mean = of_rows,
                 .rstd = of_rows,
                 .residual_gradient = d_output,
                 .d_input = Upload(Floats(kRows * kColumns)),
                 .sums = {.d_weight = sum(), .d_bias = sum()},
                 .rows = kRows,
                 .columns = kColumns};
    lane.norm.sums.of_residual_gradient = sum(), lane.norm.sums.of_d_input = sum();
    lane.bias = {.d_output = d_output, .d_bias = sum(), .rows = kRows, .columns = kColumns};
    for (const Op& op : {Op(lane.norm), Op(lane.bias)})
      ASSERT_EQ(lane.backend->Prepare(op).message(), "");
  }
  Floats first;
  for (int round = 0; round < 50; ++round) {
    for (Lane& lane : lanes) {
      for (const Op& op : {Op(lane.norm), Op(lane.bias)})
        ASSERT_EQ(lane.backend->Run(op).message(), "");
    }
    for (Lane& lane : lanes) {
      ASSERT_EQ(lane.backend->Synchronize().message(), "");
      const LayerNormSums& sums = lane.norm.sums;
      const Floats bias = Download(lane.bias.d_bias, kColumns);
      EXPECT_EQ(Download(sums.d_bias, kColumns), bias);
      EXPECT_EQ(Download(sums.of_residual_gradient, kColumns), bias);
      const Floats d_weight = Download(sums.d_weight, kColumns);
      if (first.empty()) first = d_weight;
      ASSERT_EQ(d_weight, first) << "round " << round;
    }
  }
}

TEST_F(CudaBackendTest, ARecordingEndsWhenScratchMoves) {
  float* const x = Upload(Floats(4, 0));
  const std::unique_ptr<Recording> recording =
      backend_->recorder()
          ->Record([&] { return backend_->Run(Fill{.output = x, .value = 1, .count = 4}); })
          .value();
  ASSERT_EQ(recording->Replay().message(), "");
  ASSERT_TRUE(backend_->Synchronize().ok());
  backend_->Allocate(4, MemoryKind::kScratch).value();  // and given back
  EXPECT_EQ(recording->Replay().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CudaBackendTest, WhatCannotBeRecordedIsAnErrorAfterWhichItWorks) {
  float* const x = Upload(Floats(4, 0));
  const auto refused = [&](absl::FunctionRef<absl::Status()> ops) {
    const absl::Status status = backend_->recorder()->Record(ops).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  };
  refused([&] { return backend_->Synchronize(); });
  refused([&] { return backend_->Allocate(4, MemoryKind::kScratch).status(); });
  refused([&] { return backend_->recorder()->Record([] { return absl::OkStatus(); }).status(); });
  ASSERT_EQ(backend_->Run(Fill{.output = x, .value = 2, .count = 4}).message(), "");
  EXPECT_EQ(Download(x, 4), Floats(4, 2));
}

// Others may make memory and wait for the device meanwhile: they wait for each other.
TEST_F(CudaBackendTest, OneThreadRecordsWhileAnotherMakesMemory) {
  float* const x = Upload(Floats(4, 0));
  const std::unique_ptr<MemoryBackend> other = device_->CreateMemory(StreamKind::kTransfer).value();
  std::thread making([&] {
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(other->Allocate(256, MemoryKind::kStash).ok());
  });
  for (int i = 0; i < 200; ++i) {
    const auto recording = backend_->recorder()->Record(
        [&] { return backend_->Run(Fill{.output = x, .value = 3, .count = 4}); });
    ASSERT_EQ(recording.status().message(), "");
  }
  making.join();
}

}  // namespace
}  // namespace takt::backend::cuda
