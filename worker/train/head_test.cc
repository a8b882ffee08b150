// SPDX-License-Identifier: Apache-2.0
// The head of a vocabulary of several blocks: against a reference in double, and against ranks that
// have some of the blocks each.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "common/model/tree_sum.h"
#include "common/model/vocabulary.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/op_testing.h"
#include "worker/train/linear.h"
#include "worker/train/stage.h"

namespace takt::train {
namespace {

using backend::Buffer;
using backend::SoftmaxPart;
using backend::SoftmaxRow;
using backend::testing::Doubles;
using backend::testing::Floats;
using backend::testing::SumTolerance;
using model::Precision;

constexpr std::int64_t kRows = 6, kHidden = 8, kVocab = 2 * model::kVocabularyBlock + 100;
constexpr int kBlocks = 3;
constexpr LayerId kHead{2};
constexpr float kScale = 1.0F / 5;

model::Model ModelWith(Precision products) {
  return model::BuildModel({.family = model::Family::kLlama,
                            .layers = 1,
                            .hidden = kHidden,
                            .heads = 2,
                            .kv_heads = 2,
                            .inner = 16,
                            .context = kRows / 2,
                            .positions = kRows / 2,
                            .vocab = kVocab,
                            .tied_head = false},
                           2, {.products = products})
      .value();
}

// A head computes these from one microbatch.
struct Computed {
  double loss = 0;
  Floats norm, d_norm, d_weight;  // the norm's output and its gradient; the gradient of the matrix
};

// The head as a stage of its own.
class HeadTest : public ::testing::TestWithParam<Precision> {
 protected:
  HeadTest() {
    unsigned seed = 0;
    for (const ParameterRef& ref : store_->Layer(kHead).refs) {
      const Floats values = backend::testing::Random(ref.parameter->elements(), ++seed);
      std::copy(values.begin(), values.end(), ref.weight);
    }
    EXPECT_TRUE(store_->Pack(*backend_).ok());
    targets_ = backend::testing::RandomTokens(kRows, kVocab, ++seed);
    targets_[1] = kVocab - 1;
    targets_[3] = backend::kIgnoredTarget;
    StageOptions options = OptionsOf(model_, layout_, scratch_);
    options.observer = &observer_;
    stage_.emplace(options);
  }

  static layout::StageLayout LayOut(const model::Model& model, layout::HeadLogits logits) {
    return layout::LayOutStage(model, {StageId(1), PpRank(0), kHead, LayerId(3)}, logits);
  }
  // All arguments are borrowed.
  StageOptions OptionsOf(const model::Model& model, const layout::StageLayout& layout,
                         const Buffer& scratch) const {
    return {.model = model,
            .layout = layout,
            .parameters = *store_,
            .backend = *backend_,
            .scratch = scratch.data()};
  }

  const ParameterRef& matrix() const { return store_->Layer(kHead).refs.back(); }

  Buffer Allocate(std::int64_t bytes) const {
    return backend_->Allocate(static_cast<std::size_t>(bytes), MemoryKind::kScratch).value();
  }
  Buffer Copied(const Floats& values) const {
    Buffer buffer = Allocate(static_cast<std::int64_t>(values.size() * sizeof(float)));
    std::copy(values.begin(), values.end(), buffer.floats());
    return buffer;
  }
  static Floats Values(const float* data, std::int64_t count) { return {data, data + count}; }

  Computed ByTheHead() {
    Computed computed;
    observer_ = [&](const std::string& name, MicrobatchId, std::span<const float> values) {
      if (name == "act.final_norm.output") computed.norm.assign(values.begin(), values.end());
      if (name == "act_grad.final_norm.output")
        computed.d_norm.assign(values.begin(), values.end());
    };
    const Buffer input = Copied(backend::testing::Random(kRows * kHidden, 9));
    const Buffer d_input = Allocate(kRows * kHidden * 4);
    const StageBuffers buffers{.view = {.tokens = targets_.data(), .targets = targets_.data()},
                               .input = input.floats(),
                               .d_input = d_input.floats(),
                               .stash = stash_.data()};
    EXPECT_TRUE(stage_->Forward(buffers, {.sum = &computed.loss, .scale = kScale}).ok());
    EXPECT_TRUE(stage_->InputGrad(buffers).ok());
    EXPECT_TRUE(stage_->WeightGrad({&buffers, 1}, false).ok());
    computed.d_weight = Values(matrix().gradient, kVocab * kHidden);
    return computed;
  }

  // Computes the same where rank i has the blocks from ends[i-1] (0 for the first rank) to ends[i].
  Computed ByRanks(const Floats& norm, const std::vector<int>& ends);

  // Computes F and B of two microbatches, with slices of so many rows.
  struct Passes;
  Passes TwoMicrobatches(std::int64_t slice, layout::HeadLogits logits);

  absl::Status AddFloats(float* sum, const float* other) const {
    return backend_->Run(
        backend::Add{.a = sum, .b = other, .output = sum, .count = kRows * kHidden});
  }

  const model::Model model_ = ModelWith(GetParam());
  const layout::StageLayout layout_ = LayOut(model_, layout::HeadLogits::kStashed);
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  const std::unique_ptr<ParameterStore> store_ =
      ParameterStore::Create(model_, layout::LayOutParameters(model_, {kHead}), *backend_).value();
  const Buffer stash_ = Allocate(layout_.stash_bytes), scratch_ = Allocate(layout_.scratch_bytes);
  TensorObserver observer_;
  std::optional<Stage> stage_;
  std::vector<std::int32_t> targets_;
};

// One block on the rank that has it.
struct BlockOnRank {
  model::VocabularyBlock words;
  Linear product;
  Buffer logits;
};

Computed HeadTest::ByRanks(const Floats& norm, const std::vector<int>& ends) {
  const Buffer x = Copied(norm), d_weight = Allocate(kVocab * kHidden * 4);
  ParameterRef matrix = this->matrix();
  matrix.gradient = d_weight.floats();
  const std::vector<model::VocabularyBlock> words = model::VocabularyBlocks(kVocab);
  std::vector<BlockOnRank> blocks;
  blocks.reserve(words.size());
  std::vector<SoftmaxPart> parts(kBlocks * kRows);
  std::vector<SoftmaxRow> softmax(kRows);
  Computed computed{.norm = norm};
  const auto run = [&](const backend::Op& op) { EXPECT_EQ(backend_->Run(op).message(), ""); };
  // Every rank computes its own blocks (here one after the other), then the ranks exchange `parts`.
  for (const auto& [first, count] : words) {
    blocks.push_back({.words = {first, count},
                      .product = Linear(kRows, matrix, {first, count}, count),
                      .logits = Allocate(kRows * count * 4)});
    float* const logits = blocks.back().logits.floats();
    EXPECT_TRUE(blocks.back().product.Forward(*backend_, x.floats(), nullptr, logits).ok());
    run(backend::SoftmaxBlock{.logits = logits,
                              .targets = targets_.data(),
                              .parts = parts.data() + (blocks.size() - 1) * kRows,
                              .rows = kRows,
                              .columns = count,
                              .first = first});
  }
  run(backend::CrossEntropy{.parts = parts.data(),
                            .targets = targets_.data(),
                            .softmax = softmax.data(),
                            .loss_sum = &computed.loss,
                            .rows = kRows,
                            .blocks = kBlocks,
                            .scale = kScale});
  model::TreeSum whole;
  std::vector<Buffer> sums;
  int begin = 0;
  for (const int end : ends) {
    model::TreeSum own;
    std::vector<Buffer> partial;
    for (int b = begin; b < end; ++b) {
      const BlockOnRank& block = blocks[static_cast<std::size_t>(b)];
      run(backend::CrossEntropyGradient{.logits = block.logits.floats(),
                                        .targets = targets_.data(),
                                        .parts = parts.data() + b * kRows,
                                        .softmax = softmax.data(),
                                        .rows = kRows,
                                        .columns = block.words.words,
                                        .first = block.words.first});
      partial.resize(static_cast<std::size_t>(own.size()));
      partial.push_back(Allocate(kRows * kHidden * 4));
      EXPECT_TRUE(
          block.product.InputGrad(*backend_, block.logits.floats(), partial.back().floats()).ok());
      EXPECT_TRUE(own.Push({b, 1},
                           [&](int i) {
                             const auto at = static_cast<std::size_t>(i);
                             return AddFloats(partial[at].floats(), partial[at + 1].floats());
                           })
                      .ok());
      const backend::Operand dy(block.logits.floats()), input(x.floats());
      EXPECT_TRUE(block.product.WeightGrad(*backend_, {&input, 1}, {&dy, 1}, false).ok());
    }
    // The rank passes on what it could not add.
    for (std::size_t i = 0; i < own.parts().size(); ++i) {
      sums.resize(static_cast<std::size_t>(whole.size()));
      sums.push_back(std::move(partial[i]));
      EXPECT_TRUE(whole
                      .Push(own.parts()[i],
                            [&](int j) {
                              const auto at = static_cast<std::size_t>(j);
                              return AddFloats(sums[at].floats(), sums[at + 1].floats());
                            })
                      .ok());
    }
    begin = end;
  }
  EXPECT_TRUE(whole
                  .Finish([&](int i) {
                    const auto at = static_cast<std::size_t>(i);
                    return AddFloats(sums[at].floats(), sums[at + 1].floats());
                  })
                  .ok());
  computed.d_norm = Values(sums[0].floats(), kRows * kHidden);
  computed.d_weight = Values(d_weight.floats(), kVocab * kHidden);
  return computed;
}

TEST_P(HeadTest, HasTheBitsOfRanksThatHaveSomeBlocksEach) {
  const Computed head = ByTheHead();
  ASSERT_EQ(head.norm.size(), static_cast<std::size_t>(kRows * kHidden));
  for (const std::vector<int>& ends :
       {std::vector<int>{3}, {1, 3}, {2, 3}, {0, 3}, {1, 2, 3}, {1, 1, 3}}) {
    const Computed ranks = ByRanks(head.norm, ends);
    EXPECT_EQ(ranks.loss, head.loss);
    EXPECT_EQ(ranks.d_norm, head.d_norm);
    EXPECT_EQ(ranks.d_weight, head.d_weight);
  }
}

// The same from the norm's output on, in double.
Computed Reference(const Floats& norm, const float* weight,
                   const std::vector<std::int32_t>& targets, Doubles& d_norm, Doubles& d_weight) {
  Computed reference;
  d_norm.assign(kRows * kHidden, 0);
  d_weight.assign(kVocab * kHidden, 0);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const std::int32_t target = targets[static_cast<std::size_t>(r)];
    if (target == backend::kIgnoredTarget) continue;
    const float* const x = norm.data() + r * kHidden;
    Doubles logits(kVocab, 0);
    double sum = 0;
    for (std::int64_t v = 0; v < kVocab; ++v) {
      double& logit = logits[static_cast<std::size_t>(v)];
      for (std::int64_t c = 0; c < kHidden; ++c)
        logit += static_cast<double>(x[c]) * static_cast<double>(weight[v * kHidden + c]);
      sum += std::exp(logit);
    }
    reference.loss += std::log(sum) - logits[static_cast<std::size_t>(target)];
    for (std::int64_t v = 0; v < kVocab; ++v) {
      const double d =
          static_cast<double>(kScale) *
          (std::exp(logits[static_cast<std::size_t>(v)]) / sum - (v == target ? 1 : 0));
      for (std::int64_t c = 0; c < kHidden; ++c) {
        d_norm[static_cast<std::size_t>(r * kHidden + c)] +=
            d * static_cast<double>(weight[v * kHidden + c]);
        d_weight[static_cast<std::size_t>(v * kHidden + c)] += d * static_cast<double>(x[c]);
      }
    }
  }
  return reference;
}

// Has the results of two microbatches, of which the second one adds its gradients to those of the
// first.
struct HeadTest::Passes {
  double loss = 0;  // of the second
  Floats d_input, d_matrix, d_norm_weight;
};

HeadTest::Passes HeadTest::TwoMicrobatches(std::int64_t slice, layout::HeadLogits logits) {
  model::Model model = model_;
  model.head_slice = slice;
  const layout::StageLayout layout = LayOut(model, logits);
  const Buffer stash = Allocate(layout.stash_bytes), scratch = Allocate(layout.scratch_bytes);
  Stage stage(OptionsOf(model, layout, scratch));
  Passes passes;
  const LossCall loss{.sum = &passes.loss, .scale = kScale};
  const bool sliced = logits == layout::HeadLogits::kSliced;
  EXPECT_EQ(layout.slices_head(), sliced);
  const Buffer d_input = Allocate(kRows * kHidden * 4);
  for (const unsigned microbatch : {0, 1}) {
    const Buffer input = Copied(backend::testing::Random(kRows * kHidden, 9 + microbatch));
    const StageBuffers buffers{
        .view = {.tokens = targets_.data(),
                 .targets = targets_.data(),
                 .terms = {.shares = {.target = 0.875F, .each = 1e-5F}, .z_loss = 1e-2}},
        .input = input.floats(),
        .d_input = d_input.floats(),
        .stash = stash.data()};
    EXPECT_TRUE(stage.Forward(buffers, sliced ? LossCall() : loss).ok());
    EXPECT_EQ(passes.loss == 0, sliced && microbatch == 0);
    EXPECT_TRUE(stage.Backward(buffers, microbatch > 0, sliced ? loss : LossCall()).ok());
  }
  passes.d_input = Values(d_input.floats(), kRows * kHidden);
  passes.d_matrix = Values(matrix().gradient, kVocab * kHidden);
  passes.d_norm_weight = Values(store_->Layer(kHead).refs.front().gradient, kHidden);
  return passes;
}

// The slices are 4 and 2 rows, or one row each.
TEST_P(HeadTest, HasTheSameBitsWhereLogitsAreSliced) {
  const Passes whole = TwoMicrobatches(0, layout::HeadLogits::kStashed);
  for (const std::int64_t slice : {4, 1}) {
    const Passes stashed = TwoMicrobatches(slice, layout::HeadLogits::kStashed);
    const Passes sliced = TwoMicrobatches(slice, layout::HeadLogits::kSliced);
    EXPECT_EQ(sliced.loss, stashed.loss);
    EXPECT_EQ(sliced.d_input, stashed.d_input);
    EXPECT_EQ(sliced.d_matrix, stashed.d_matrix);
    EXPECT_EQ(sliced.d_norm_weight, stashed.d_norm_weight);
    // Without slices only the order of sums is another one, which products in bf16 may round up or
    // down.
    EXPECT_NEAR(sliced.loss, whole.loss, 1e-3);
    const Doubles expected(whole.d_matrix.begin(), whole.d_matrix.end());
    const double allowed = GetParam() == Precision::kF32 ? SumTolerance(kVocab, 1) : 1e-2;
    backend::testing::ExpectNear(sliced.d_matrix, expected, allowed, "gradient of the matrix");
  }
}

// A validation has no backward.
TEST_P(HeadTest, HasTheSameLossWithoutABackward) {
  model::Model model = model_;
  model.head_slice = 4;
  std::vector<double> losses;
  for (const layout::HeadLogits logits :
       {layout::HeadLogits::kStashed, layout::HeadLogits::kSliced}) {
    const layout::StageLayout layout = LayOut(model, logits);
    const Buffer stash = Allocate(layout.stash_bytes), scratch = Allocate(layout.scratch_bytes);
    Stage stage(OptionsOf(model, layout, scratch));
    const Buffer input = Copied(backend::testing::Random(kRows * kHidden, 9));
    const StageBuffers buffers{.view = {.tokens = targets_.data(), .targets = targets_.data()},
                               .input = input.floats(),
                               .stash = stash.data()};
    double& loss = losses.emplace_back();
    EXPECT_TRUE(stage.Forward(buffers, {.sum = &loss, .scale = kScale}).ok());
  }
  EXPECT_GT(losses[0], 0);
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_P(HeadTest, AgreesWithDouble) {
  if (GetParam() != Precision::kF32) GTEST_SKIP() << "products in bf16 are tested op by op";
  const Computed head = ByTheHead();
  Doubles d_norm, d_weight;
  const Computed expected = Reference(head.norm, matrix().weight, targets_, d_norm, d_weight);
  // Softmax divides by sums of kVocab numbers, and logits and weights are up to 8.
  EXPECT_NEAR(head.loss, expected.loss, kRows * SumTolerance(kVocab, 1));
  const double allowed = SumTolerance(kVocab, 8 * static_cast<double>(kScale));
  backend::testing::ExpectNear(head.d_norm, d_norm, allowed, "gradient of the norm's output");
  backend::testing::ExpectNear(head.d_weight, d_weight, allowed, "gradient of the matrix");
}

INSTANTIATE_TEST_SUITE_P(Products, HeadTest, ::testing::Values(Precision::kF32, Precision::kBf16),
                         [](const auto& info) {
                           return info.param == Precision::kF32 ? "F32" : "Bf16";
                         });

}  // namespace
}  // namespace takt::train
