// SPDX-License-Identifier: Apache-2.0
// Tests what holds for the backend as a whole: the same bits for any number of threads, memory,
// refusals.
#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>

#include "common/model/muon.h"
#include "gmock/gmock.h"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

using ::testing::HasSubstr;

// Runs every op once, each on the outputs of those before it. Returns everything that was computed.
Floats RunEveryOp(Backend& backend, std::int64_t batch, std::int64_t context, std::int64_t heads,
                  std::int64_t head_size, std::int64_t vocab) {
  const std::int64_t n = batch * context, c = heads * head_size;
  Floats all;
  const auto run = [&](const Op& op, std::initializer_list<const Floats*> outputs) {
    EXPECT_EQ(backend.Run(op).message(), "");
    for (const Floats* output : outputs) all.insert(all.end(), output->begin(), output->end());
  };
  const auto keep = [&](double value) {
    Floats bits(2);
    std::memcpy(bits.data(), &value, sizeof value);
    // Compares as integers: some bit patterns are NaNs, which compare unequal.
    for (float& part : bits) part = static_cast<float>(std::bit_cast<std::uint32_t>(part) >> 8);
    all.insert(all.end(), bits.begin(), bits.end());
  };
  const auto tokens = RandomTokens(n, vocab, 1);
  Floats table = Random(vocab * c, 2), positions = Random(context * c, 3);
  Floats x = Unset(n * c);
  run(EmbeddingForward{tokens.data(), table.data(), positions.data(), x.data(), batch, context, c},
      {&x});
  const Floats weight = Random(c, 4), bias = Random(3 * c, 5);
  Floats normed = Unset(n * c), mean = Unset(n), rstd = Unset(n);
  run(LayerNormForward{.input = x.data(),
                       .weight = weight.data(),
                       .bias = bias.data(),
                       .output = normed.data(),
                       .mean = mean.data(),
                       .rstd = rstd.data(),
                       .rows = n,
                       .columns = c},
      {&normed, &mean, &rstd});
  const Floats w = Random(c * 3 * c, 6, 0.1F);
  Floats qkv = Unset(n * 3 * c);
  run(Matmul{.a = normed.data(),
             .b = w.data(),
             .c = qkv.data(),
             .bias = bias.data(),
             .m = n,
             .n = 3 * c,
             .k = c},
      {&qkv});
  const AttentionShape shape{batch, context, heads, heads, head_size, 3 * c, 3 * c, c};
  Floats attended = Unset(n * c), logsumexp = Unset(n * heads), d_qkv = Unset(n * 3 * c);
  run(AttentionForward{shape, qkv.data(), qkv.data() + c, qkv.data() + 2 * c, attended.data(),
                       logsumexp.data()},
      {&attended, &logsumexp});
  run(AttentionBackward{shape, qkv.data(), qkv.data() + c, qkv.data() + 2 * c, attended.data(),
                        logsumexp.data(), x.data(), d_qkv.data(), d_qkv.data() + c,
                        d_qkv.data() + 2 * c},
      {&d_qkv});
  Floats keys = Random(n * c, 8), values = Random(n * c, 9), cached = Unset(c);
  run(CachedAttention{.q = qkv.data(),
                      .k = qkv.data() + c,
                      .v = qkv.data() + 2 * c,
                      .keys = keys.data(),
                      .values = values.data(),
                      .output = cached.data(),
                      .rows = 1,
                      .past = n - 1,
                      .capacity = n,
                      .heads = heads,
                      .kv_heads = heads,
                      .head_size = head_size,
                      .q_stride = c,
                      .kv_stride = c,
                      .out_stride = c},
      {&keys, &values, &cached});
  Floats row = Unset(3 * c), transposed_row = Unset(vocab);
  run(Matmul{.a = normed.data(), .b = w.data(), .c = row.data(), .m = 1, .n = 3 * c, .k = c},
      {&row});
  run(Matmul{.a = cached.data(),
             .b = table.data(),
             .c = transposed_row.data(),
             .b_transposed = true,
             .m = 1,
             .n = vocab,
             .k = c},
      {&transposed_row});
  Floats d_w = Random(c * 3 * c, 7), d_bias = Unset(3 * c), d_x = Unset(n * c);
  run(Matmul{.a = normed.data(),
             .b = d_qkv.data(),
             .c = d_w.data(),
             .addend = d_w.data(),
             .a_transposed = true,
             .m = c,
             .n = 3 * c,
             .k = n},
      {&d_w});
  run(Matmul{.a = d_qkv.data(),
             .b = w.data(),
             .c = d_x.data(),
             .b_transposed = true,
             .m = n,
             .n = c,
             .k = 3 * c},
      {&d_x});
  run(BiasGrad{d_qkv.data(), d_bias.data(), n, 3 * c}, {&d_bias});
  Floats d_norm_weight = Unset(c), d_norm_bias = Unset(c), d_sum = Unset(n * c);
  run(LayerNormBackwardWeights{d_x.data(), x.data(), mean.data(), rstd.data(), d_norm_weight.data(),
                               d_norm_bias.data(), n, c},
      {&d_norm_weight, &d_norm_bias});
  run(LayerNormBackwardInput{.d_output = d_x.data(),
                             .x = x.data(),
                             .weight = weight.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .residual_gradient = x.data(),
                             .d_input = d_sum.data(),
                             .rows = n,
                             .columns = c},
      {&d_sum});
  Floats gelu = Unset(n * c), d_gelu = Unset(n * c);
  run(GeluForward{attended.data(), gelu.data(), n * c}, {&gelu});
  run(GeluBackward{attended.data(), d_sum.data(), d_gelu.data(), n * c}, {&d_gelu});
  Floats logits = Unset(n * vocab);
  run(Matmul{.a = gelu.data(),
             .b = table.data(),
             .c = logits.data(),
             .b_transposed = true,
             .m = n,
             .n = vocab,
             .k = c},
      {&logits});
  double norm = 0;
  BlockedCrossEntropy<float> cross_entropy(backend, {{logits.data(), vocab, 0}}, tokens);
  keep(cross_entropy.Loss(1.0F / static_cast<float>(n)));
  for (const SoftmaxPart& part : cross_entropy.parts()) keep(part.sum);
  cross_entropy.Gradient();
  all.insert(all.end(), logits.begin(), logits.end());
  Floats d_table = Unset(vocab * c), d_positions = Unset(context * c);
  run(EmbeddingBackward{tokens.data(), d_gelu.data(), d_table.data(), d_positions.data(), batch,
                        context, c, vocab, context},
      {&d_table, &d_positions});
  run(SumOfSquares{d_table.data(), &norm, vocab * c}, {});
  keep(norm);
  Floats m(table.size(), 0), v(table.size(), 0);
  const UpdatedTensor tensors[] = {{.parameter = table.data(),
                                    .gradient = d_table.data(),
                                    .m = m.data(),
                                    .v = v.data(),
                                    .count = vocab * c,
                                    .weight_decay = 0.1}};
  run(LionUpdate{.tensors = tensors, .learning_rate = 1e-4, .gradient_scale = 1 / norm},
      {&table, &m});
  run(SgdUpdate{.tensors = tensors,
                .learning_rate = 1e-3,
                .momentum = 0.9,
                .nesterov = true,
                .gradient_scale = 1 / norm},
      {&table, &m});
  run(AdamwUpdate{.tensors = tensors, .learning_rate = 1e-3, .gradient_scale = 1 / norm},
      {&table, &m, &v});
  run(FeedBackError{.parameter = table.data(),
                    .previous = d_table.data(),
                    .last_update = m.data(),
                    .count = static_cast<std::int64_t>(table.size()),
                    .coefficient = 0.75F},
      {&table, &m});
  Floats scratch = Unset(model::MuonScratchFloats(vocab, c));
  run(MuonUpdate{.parameter = table.data(),
                 .gradient = d_table.data(),
                 .m = m.data(),
                 .scratch = scratch.data(),
                 .rows = vocab,
                 .columns = c,
                 .learning_rate = 1e-3,
                 .weight_decay = 0.1,
                 .gradient_scale = 1 / norm},
      {&table, &m});
  return all;
}

TEST(CpuBackend, GivesTheSameBitsForAnyNumberOfThreads) {
  struct Shape {
    std::int64_t batch, context, heads, head_size, vocab;
  };
  for (const Shape s :
       {Shape{1, 1, 2, 12, 131}, Shape{3, 65, 3, 12, 131}, Shape{2, 129, 4, 64, 500}}) {
    const auto single = CreateOrDie({.threads = 1});
    const Floats expected = RunEveryOp(*single, s.batch, s.context, s.heads, s.head_size, s.vocab);
    for (const float value : expected) ASSERT_FALSE(std::isnan(value));
    for (const int threads : {1, 2, 3}) {
      const auto backend = CreateOrDie({.threads = threads});
      EXPECT_TRUE(RunEveryOp(*backend, s.batch, s.context, s.heads, s.head_size, s.vocab) ==
                  expected)
          << threads << " threads, context " << s.context;
    }
  }
}

TEST(CpuBackend, CountsWhatIsAllocatedByKind) {
  MemoryLedger ledger;
  const auto backend = CreateOrDie({.threads = 1, .ledger = &ledger});
  {
    const Buffer stash = backend->Allocate(std::size_t{3} << 20, MemoryKind::kStash).value();
    EXPECT_EQ(ledger.Read()[MemoryKind::kStash], std::int64_t{4} << 20);  // in huge pages
    EXPECT_EQ(ledger.Read()[MemoryKind::kWeights], 0);
  }
  EXPECT_EQ(ledger.Read(), MemoryBytes());
}

TEST(CpuBackend, AllocatesZeroedAlignedMemory) {
  const auto backend = CreateOrDie({.threads = 2});
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{4}, std::size_t{100}, std::size_t{5} << 20}) {
    const Buffer buffer = backend->Allocate(bytes, MemoryKind::kScratch).value();
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
  }
  EXPECT_EQ(backend->Allocate(std::size_t{1} << 60, MemoryKind::kScratch).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(CpuBackend, SaysWhatItIs) {
  for (const std::string& isa : CpuInstructionSets()) {
    const auto backend = CreateOrDie({.threads = 3, .instruction_set = isa});
    EXPECT_TRUE(backend->memory_is_host());
    EXPECT_THAT(backend->description(), ::testing::StartsWith("cpu " + isa));
  }
}

std::ptrdiff_t ThreadsOfThisProcess() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(CpuBackends, StartThreadsOnlyForTheLaneThatComputes) {
  const std::unique_ptr<BackendFactory> backends = CreateCpuBackends({.threads = 3});
  const std::ptrdiff_t before = ThreadsOfThisProcess();
  const auto reduce = backends->CreateMemory(StreamKind::kReduce).value();
  const auto load = backends->CreateMemory(StreamKind::kTransfer).value();
  EXPECT_EQ(ThreadsOfThisProcess(), before);
  const auto compute = backends->CreateCompute().value();
  EXPECT_EQ(ThreadsOfThisProcess(), before + 2);
}

TEST(CpuBackends, CopyAndAddOnLanesThatDoNotCompute) {
  const std::unique_ptr<BackendFactory> backends = CreateCpuBackends({});
  const auto compute = backends->CreateCompute().value();
  const auto reduce = backends->CreateMemory(StreamKind::kReduce).value();
  // Both flush sums of denormal numbers to zero.
  const std::vector<float> a = {1, 2.5F, 1e-39F, 3e38F}, b = {0.1F, -2.5F, 1e-39F, 3e38F};
  const auto sum = [&](auto& backend) {
    std::vector<float> copied(a.size()), added(a.size());
    const std::int64_t count = std::ssize(a);
    EXPECT_TRUE(backend.Run(Copy{.input = a.data(), .output = copied.data(), .count = count}).ok());
    EXPECT_TRUE(
        backend.Run(Add{.a = copied.data(), .b = b.data(), .output = added.data(), .count = count})
            .ok());
    return added;
  };
  EXPECT_EQ(sum(*reduce), sum(*compute));
  EXPECT_EQ(sum(*reduce)[2], 0);
  EXPECT_EQ(reduce->Run(Add{.a = a.data(), .count = 1}).message(), "Add.b is null");
}

TEST(CpuBackends, RefuseThreadsThatTheyCannotStart) {
  EXPECT_THAT(CreateCpuBackends({.threads = 0})->CreateCompute().status().message(),
              HasSubstr("threads is 0"));
}

TEST(CpuBackend, RefusesOptionsItCannotServe) {
  EXPECT_THAT(CreateCpuBackend({.threads = 0}).status().message(), HasSubstr("threads is 0"));
  EXPECT_THAT(CreateCpuBackend({.threads = 1, .instruction_set = "neon2"}).status().message(),
              HasSubstr("instruction_set is \"neon2\", this machine has"));
}

TEST(CpuBackend, RefusesOpsThatBreakARule) {
  const auto backend = CreateOrDie({.threads = 1});
  float x = 0;
  EXPECT_EQ(backend->Run(Matmul{.a = &x, .b = &x, .c = &x, .m = 1, .n = 0, .k = 1}).message(),
            "Matmul.n is 0, must be at least 1");
  EXPECT_EQ(backend->Run(GeluForward{.input = &x, .count = 1}).message(),
            "GeluForward.output is null");
  EXPECT_EQ(backend->Run(AttentionForward{.shape = {1, 1, 3, 2, 1, 3, 2, 3}}).message(),
            "AttentionForward: heads must be divisible by kv_heads");
  EXPECT_EQ(backend->Run(AttentionForward{.shape = {1, 1, 2, 2, 4, 7, 8, 8}}).message(),
            "AttentionForward.q_stride is 7, must be at least 8");
  EXPECT_EQ(backend->Run(AttentionForward{.shape = {1, 1, 2, 2, 4, 8, 8, 8, -1}}).message(),
            "AttentionForward.window is -1, must be at least 0");
  Bf16 half{};
  EXPECT_EQ(backend->Run(LayerNormBackwardInput{.x = &x, .d_input = &half}).message(),
            "LayerNormBackwardInput: x, residual_gradient and d_input must have one type");
  EXPECT_EQ(
      backend->Run(RmsNormBackwardInput{.x = &half, .d_input = &half, .rounded = &half}).message(),
      "RmsNormBackwardInput: rounded needs d_input in f32");
}

}  // namespace
}  // namespace takt::backend::testing
