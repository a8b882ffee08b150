// SPDX-License-Identifier: Apache-2.0
// Every family against the float64 references of tests/golden/models, through plan, engine and
// transport.
#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "common/schedule/generate.h"
#include "gtest/gtest.h"
#include "tests/numerics/golden.h"
#include "tests/numerics/in_process_run.h"
#include "worker/backend/discrete/discrete_backend.h"

namespace takt::numerics {
namespace {

struct Layout {
  std::string schedule;
  int pipeline = 1;
  int chunks = 1;  // 0: as many as the family has
  int data = 1;
  model::Recompute recompute = model::Recompute::kNone;
  bool discrete = false;  // on memory that the host cannot touch
  int expert = 1;
};

std::string Print(const Layout& layout) {
  std::string name = layout.schedule + "_pp" + std::to_string(layout.pipeline) + "_v" +
                     std::to_string(layout.chunks);
  if (layout.data > 1) name += "_dp" + std::to_string(layout.data);
  if (layout.expert > 1) name += "_ep" + std::to_string(layout.expert);
  if (layout.recompute != model::Recompute::kNone) {
    name += "_" + std::string(model::Name(layout.recompute));
  }
  if (layout.discrete) name += "_discrete";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

using config::Precision;

// What is in bf16, as the models' README has tolerances for: nothing, products, or activations too,
// as of jobs on GPUs. With each of the last two, what layers pass on may be in bf16 as well.
enum class Rounded { kNothing, kProducts, kActivations, kProductsAndResidual, kAll };

bool RoundsActivations(Rounded rounded) {
  return rounded == Rounded::kActivations || rounded == Rounded::kAll;
}
bool RoundsResidual(Rounded rounded) {
  return rounded == Rounded::kProductsAndResidual || rounded == Rounded::kAll;
}

std::string Print(Rounded rounded) {
  switch (rounded) {
    case Rounded::kNothing:
      return "f32";
    case Rounded::kProducts:
      return "bf16";
    case Rounded::kActivations:
      return "bf16 activations";
    case Rounded::kProductsAndResidual:
      return "bf16 residual";
    case Rounded::kAll:
      return "bf16 activations and residual";
  }
  return "";
}

void PrintTo(const Layout& layout, std::ostream* out) { *out << Print(layout); }

using Case = std::tuple<std::string, Layout, Rounded>;

// Every stage holds a layer at least: the models have two to four blocks, an embedding and a head.
std::vector<Case> Cases(Rounded rounded) {
  std::vector<Case> cases;
  const auto add = [&](const char* model, const Layout& layout) {
    cases.push_back({model, layout, rounded});
  };
  for (const char* model :
       {"gpt2-tiny", "gpt2-ignore-index", "llama-tiny", "llama-one-kv-head", "qwen2-tiny",
        "qwen3-tiny", "mistral-tiny", "llama-packed", "gpt2-packed", "mixtral-tiny", "mixtral-aux",
        "qwen3moe-tiny", "qwen3moe-unnormed"}) {
    for (const int pp : {1, 2, 3}) {
      for (const char* schedule : {"naive", "gpipe", "1f1b"}) {
        add(model, {.schedule = schedule, .pipeline = pp});
      }
    }
    add(model, {.schedule = "interleaved-1f1b", .pipeline = 1, .chunks = 2});
  }
  add("gpt2-tiny", {.schedule = "interleaved-1f1b", .pipeline = 1, .chunks = 4});
  add("gpt2-tiny", {.schedule = "interleaved-1f1b", .pipeline = 2, .chunks = 2});
  // Replicas whose shares of the scored tokens differ still divide by those of the whole batch.
  add("gpt2-tiny", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  add("gpt2-ignore-index", {.schedule = "1f1b", .pipeline = 2, .data = 3});
  add("llama-tiny", {.schedule = "interleaved-1f1b", .pipeline = 2, .chunks = 2});
  add("llama-tiny", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  add("qwen2-tiny", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  add("qwen3-tiny", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  add("gpt2-packed", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  add("llama-packed", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  for (const model::Recompute mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
    add("qwen3-tiny", {.schedule = "zb-h1", .pipeline = 2, .recompute = mode});
    add("mistral-tiny", {.schedule = "zb-h1", .pipeline = 2, .recompute = mode});
    add("llama-packed", {.schedule = "zb-h1", .pipeline = 3, .recompute = mode});
    add("gpt2-packed", {.schedule = "1f1b", .pipeline = 3, .recompute = mode});
    add("mixtral-aux", {.schedule = "zb-h1", .pipeline = 2, .recompute = mode});
    add("qwen3moe-unnormed", {.schedule = "zb-h1", .pipeline = 2, .recompute = mode});
  }
  add("qwen3moe-tiny", {.schedule = "1f1b", .pipeline = 2, .data = 2});
  add("mixtral-tiny", {.schedule = "1f1b", .pipeline = 2, .data = 2, .expert = 2});
  // In bf16 other experts get a few tokens, and where that turns the sign of a load, the bias moves
  // the other way.
  if (rounded == Rounded::kNothing) {
    for (const int pp : {1, 2, 3}) add("mixtral-sigmoid", {.schedule = "1f1b", .pipeline = pp});
    for (const int expert : {1, 2})
      add("mixtral-sigmoid", {.schedule = "zb-h1", .pipeline = 2, .data = 2, .expert = expert});
    add("mixtral-sigmoid",
        {.schedule = "zb-v", .pipeline = 2, .chunks = 2, .recompute = model::Recompute::kFull});
  }
  // The auxiliary loss is part of I of each block, whatever the order of a step.
  for (const schedule::Family& family : schedule::Families()) {
    if (family.updates != schedule::Updates::kFlush) continue;
    add("mixtral-aux", {.schedule = std::string(family.name), .pipeline = 2, .chunks = 0});
  }
  return cases;
}

constexpr const char* kModelsWithoutExperts[] = {
    "gpt2-tiny",  "gpt2-ignore-index", "llama-tiny",   "llama-one-kv-head", "qwen2-tiny",
    "qwen3-tiny", "mistral-tiny",      "llama-packed", "gpt2-packed"};

std::vector<Case> CasesOfBf16Activations() {
  using enum model::Recompute;
  std::vector<Case> cases;
  for (const char* model : kModelsWithoutExperts) {
    for (const Layout& layout : {Layout{.schedule = "1f1b"},
                                 {.schedule = "zb-h1", .pipeline = 3},
                                 {.schedule = "1f1b", .pipeline = 2, .data = 2},
                                 {.schedule = "1f1b", .pipeline = 2, .recompute = kSelective},
                                 {.schedule = "zb-h1", .pipeline = 2, .recompute = kFull},
                                 {.schedule = "1f1b", .pipeline = 2, .discrete = true}}) {
      cases.push_back({model, layout, Rounded::kActivations});
    }
  }
  for (const char* model : {"mixtral-tiny", "mixtral-aux", "qwen3moe-tiny", "qwen3moe-unnormed"})
    cases.push_back({model, {.schedule = "zb-h1", .pipeline = 2}, Rounded::kActivations});
  return cases;
}

std::vector<Case> CasesOfBf16Residual() {
  using enum model::Recompute;
  std::vector<Case> cases;
  for (const char* model : kModelsWithoutExperts) {
    for (const Layout& layout : {Layout{.schedule = "1f1b"},
                                 {.schedule = "zb-h1", .pipeline = 3},
                                 {.schedule = "1f1b", .pipeline = 2, .recompute = kFull}}) {
      cases.push_back({model, layout, Rounded::kProductsAndResidual});
      cases.push_back({model, layout, Rounded::kAll});
    }
  }
  for (const char* model : {"mixtral-tiny", "mixtral-aux", "qwen3moe-tiny"}) {
    for (const Rounded rounded : {Rounded::kProductsAndResidual, Rounded::kAll})
      cases.push_back({model, {.schedule = "zb-h1", .pipeline = 2}, rounded});
  }
  return cases;
}

class Golden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto& [name, layout, rounded] = GetParam();
    golden_ = LoadGolden(name);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    golden_.job.precision = rounded == Rounded::kNothing ? Precision::kF32 : Precision::kBf16;
    if (RoundsResidual(rounded)) golden_.job.residual = Precision::kBf16;
    golden_.job.parallelism.schedule = layout.schedule;
    golden_.job.parallelism.pipeline = layout.pipeline;
    golden_.job.parallelism.chunks =
        layout.chunks == 0 ? std::nullopt : std::optional<int>(layout.chunks);
    golden_.job.parallelism.data = layout.data;
    golden_.job.parallelism.expert = layout.expert;
    golden_.job.parallelism.recompute = {layout.recompute};
  }

  RunResult Train(int steps, train::TensorObserver observer = nullptr) const {
    const auto& [name, layout, rounded] = GetParam();
    RunOptions options{.job = golden_.job, .observer = std::move(observer)};
    if (RoundsActivations(rounded)) options.planned_for = config::DeviceKind::kCuda;
    if (layout.discrete) {
      options.make_backends = [](int threads) {
        return backend::CreateDiscreteBackends({.threads = threads});
      };
    }
    options.job.steps = steps;
    absl::StatusOr<RunResult> result = TrainInProcess(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }

  std::vector<float> Pick(const std::string& tensor, const std::vector<float>& values,
                          bool zeros) const {
    return numerics::Pick(golden_, tensor, values, zeros);
  }

  std::string Title() const {
    return golden_.name + " " + Print(std::get<Layout>(GetParam())) + " " +
           Print(std::get<Rounded>(GetParam()));
  }
  const Tolerances& Allowed() const { return TolerancesOf(golden_.job.precision); }

  // Returns whether one rank counts all rows of a block, and the reference routes them alike: in
  // bf16 it chooses other experts for a few tokens.
  bool IsWholeAndExact() const {
    const auto& [name, layout, rounded] = GetParam();
    return rounded == Rounded::kNothing && layout.data == 1 && layout.chunks > 0;
  }

  // Compares the loads of the last step with the numbers of tokens of the reference.
  void ExpectLoads(std::vector<train::ExpertLoad> loads) const {
    std::ranges::sort(loads, {}, &train::ExpertLoad::block);
    const std::vector<std::vector<std::int64_t>>& expected = golden_.steps.back().expert_tokens;
    ASSERT_EQ(loads.size(), expected.size());
    for (std::size_t i = 0; i < loads.size(); ++i) {
      double sum = 0, fullest = 0;
      for (const std::int64_t tokens : expected[i]) {
        sum += static_cast<double>(tokens);
        fullest = std::max(fullest, static_cast<double>(tokens));
      }
      const auto experts = static_cast<double>(expected[i].size());
      EXPECT_DOUBLE_EQ(loads[i].max_over_mean, fullest * experts / sum);
      EXPECT_EQ(loads[i].dropped, 0);
    }
  }

  GoldenCase golden_;
};

void Append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

TEST_P(Golden, FirstStepAgreesInLossGradientsAndActivations) {
  Tensors seen;  // of the first sequence
  const RunResult run = Train(
      1, [&](const std::string& name, MicrobatchId microbatch, std::span<const float> values) {
        if (microbatch == MicrobatchId(0)) seen[name].assign(values.begin(), values.end());
      });
  ASSERT_EQ(run.steps.size(), 1U);
  const Tolerances& allowed = Allowed();
  Comparison compare(Title());
  compare.Absolute("loss", "step 1", run.steps[0].loss, golden_.steps[0].loss, allowed.loss_abs);
  compare.Absolute("grad_norm", "step 1", run.steps[0].grad_norm / golden_.steps[0].grad_norm, 1,
                   allowed.grad_norm_rel);
  EXPECT_EQ(run.steps[0].tokens, golden_.steps[0].scored);

  std::vector<float> all_got, all_want;
  int compared = 0;
  for (const auto& [name, want] : golden_.expected) {
    if (name.starts_with("grad.")) {
      const std::string parameter = name.substr(5);
      ASSERT_TRUE(run.gradients.contains(parameter)) << parameter;
      const std::vector<float>& gradient = run.gradients.at(parameter);
      ASSERT_EQ(gradient.size(), want.size()) << parameter;
      const std::vector<float> got = Pick(parameter, gradient, false);
      const std::vector<float> rest = Pick(parameter, want, false);
      compare.MaxRelative("gradients, max / max of tensor", parameter, got, rest,
                          allowed.gradients_max);
      compare.RelativeL2("gradients, rel l2", parameter, got, rest, allowed.gradients_l2);
      const std::vector<float> zeros = Pick(parameter, gradient, true);
      compare.MaxAbsolute("zero gradients, max", parameter, zeros, std::vector<float>(zeros.size()),
                          allowed.zero_gradients_abs);
      Append(all_got, got);
      Append(all_want, rest);
    } else {
      ASSERT_TRUE(seen.contains(name)) << name;
      const std::vector<float>& got = seen.at(name);
      if (name.starts_with("act_grad.")) {
        compare.RelativeL2("activation gradients, rel l2", name, got, want,
                           allowed.activation_gradients_l2);
      } else if (name == "logits") {
        compare.MaxAbsolute("logits, max", name, got, want, allowed.logits_abs);
        compare.RelativeL2("logits, rel l2", name, got, want, allowed.logits_l2);
      } else {
        compare.MaxAbsolute("activations, max", name, got, want, allowed.activations_abs);
        compare.RelativeL2("activations, rel l2", name, got, want, allowed.activations_l2);
      }
    }
    ++compared;
  }
  compare.RelativeL2("gradients, rel l2 overall", "all", all_got, all_want,
                     allowed.gradients_l2_overall);
  // There are every parameter that has a gradient, boundaries with their gradients, logits, and
  // those of routers.
  const auto parameters =
      static_cast<int>(std::ranges::count_if(golden_.initial_weights, [](const auto& weight) {
        return !weight.first.ends_with("e_score_correction_bias");
      }));
  const auto routers = static_cast<int>(golden_.steps[0].expert_tokens.size());
  EXPECT_EQ(compared, parameters + 2 * (golden_.job.model.layers + 2) + 1 + routers);
}

TEST_P(Golden, TenStepsAgreeInLossNormAndWeights) {
  const RunResult run = Train(10);
  ASSERT_EQ(run.steps.size(), 10U);
  const Tolerances& allowed = Allowed();
  Comparison compare(Title());
  CompareSteps(golden_, run, allowed, compare);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_DOUBLE_EQ(run.steps[i].learning_rate, golden_.steps[i].learning_rate);
    EXPECT_EQ(run.steps[i].tokens, golden_.steps[i].scored);
  }
  if (IsWholeAndExact()) ExpectLoads(run.expert_loads);
  CompareFinalWeights(golden_, run.weights, allowed, compare);
}

TEST_P(Golden, FinalWeightsGiveTheFinalLoss) {
  golden_.job.validation = {.path = golden_.directory + "/batch.safetensors",
                            .format = config::DataFormat::kSafetensors};
  const RunResult run = Train(10);
  ASSERT_TRUE(run.validation_loss.has_value());
  Comparison compare(Title());
  compare.Absolute("final loss", "validation after ten steps", *run.validation_loss,
                   golden_.final_loss, Allowed().loss_abs);
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const auto& [model, layout, rounded] = info.param;
  std::string name = model + "_" + Print(layout);
  if (rounded == Rounded::kAll) name += "_activations";
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(Cases(Rounded::kNothing)), NameOf);
INSTANTIATE_TEST_SUITE_P(ModelsBf16, Golden, ::testing::ValuesIn(Cases(Rounded::kProducts)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(ModelsBf16Activations, Golden,
                         ::testing::ValuesIn(CasesOfBf16Activations()), NameOf);
INSTANTIATE_TEST_SUITE_P(ModelsBf16Residual, Golden, ::testing::ValuesIn(CasesOfBf16Residual()),
                         NameOf);

// The batches are the same as one stream of u16 tokens, in which documents end with a token.
TEST(GoldenTokens, StreamGivesTheSameStepsAsTensors) {
  for (const char* model : {"gpt2-tiny", "llama-packed", "gpt2-packed"}) {
    GoldenCase golden = LoadGolden(model);
    ASSERT_FALSE(golden.steps.empty());
    golden.job.parallelism = {.pipeline = 2, .data = 1, .schedule = "1f1b"};
    const absl::StatusOr<RunResult> tensors = TrainInProcess({.job = golden.job});
    golden.job.train = {
        {.path = golden.directory + "/tokens.bin", .format = config::DataFormat::kUint16}};
    const absl::StatusOr<RunResult> stream = TrainInProcess({.job = golden.job});
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_EQ(tensors->steps.size(), stream->steps.size());
    for (std::size_t i = 0; i < stream->steps.size(); ++i) {
      EXPECT_EQ(stream->steps[i].loss, tensors->steps[i].loss) << model;
      EXPECT_EQ(stream->steps[i].tokens, tensors->steps[i].tokens) << model;
    }
  }
}

}  // namespace
}  // namespace takt::numerics
