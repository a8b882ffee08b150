// SPDX-License-Identifier: Apache-2.0
// Families whose layers several ranks split, against the float64 references of tests/golden/models.
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/numerics/golden.h"
#include "tests/numerics/in_process_run.h"

namespace takt::numerics {
namespace {

// The number of leaves is that of the ranks, or, with one rank, 4.
struct Mesh {
  int tensor = 1, pipeline = 1, data = 1;
};

std::string Print(const Mesh& mesh) {
  return "tp" + std::to_string(mesh.tensor) + "_pp" + std::to_string(mesh.pipeline) + "_dp" +
         std::to_string(mesh.data);
}

void PrintTo(const Mesh& mesh, std::ostream* out) { *out << Print(mesh); }

using Case = std::tuple<std::string, Mesh>;

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* const model : {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "llama-one-kv-head"}) {
    for (const int tensor : {1, 2, 4}) {
      for (const int pipeline : {1, 2}) {
        for (const int data : {1, 2}) {
          cases.emplace_back(model, Mesh{.tensor = tensor, .pipeline = pipeline, .data = data});
        }
      }
    }
  }
  // Heads are normalised; keys have a window.
  cases.emplace_back("qwen3-tiny", Mesh{.tensor = 4, .pipeline = 2});
  cases.emplace_back("mistral-tiny", Mesh{.tensor = 4, .pipeline = 2});
  // Documents share rows, and the rows of ranks begin and end within them.
  cases.emplace_back("llama-packed", Mesh{.tensor = 4, .pipeline = 2});
  return cases;
}

class TensorGolden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto& [name, mesh] = GetParam();
    golden_ = LoadGolden(name);
    golden_.job.parallelism.schedule = "1f1b";
    golden_.job.parallelism.pipeline = mesh.pipeline;
    golden_.job.parallelism.data = mesh.data;
  }

  RunResult Train(int steps) const {
    const Mesh& mesh = std::get<Mesh>(GetParam());
    RunOptions options{
        .job = golden_.job,
        .tensor = {.size = mesh.tensor, .leaves = mesh.tensor == 1 ? 4 : mesh.tensor}};
    options.job.steps = steps;
    absl::StatusOr<RunResult> result = TrainInProcess(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }

  std::string Title() const { return golden_.name + " " + Print(std::get<Mesh>(GetParam())); }

  GoldenCase golden_;
};

TEST_P(TensorGolden, FirstStepAgreesInLossAndGradients) {
  CompareFirstStep(golden_, Train(1), Title());
}

TEST_P(TensorGolden, TenStepsAgreeInLossNormAndWeights) {
  CompareTraining(golden_, Train(10), Title());
}

// This takes minutes, so tests/long.sh mesh runs it.
TEST_P(TensorGolden, DISABLED_EveryShardScheduleAndRecomputeHasTheSameBits) {
  const int tensor = std::get<Mesh>(GetParam()).tensor;
  RunOptions options{.job = golden_.job, .tensor = {.size = tensor, .leaves = tensor}};
  options.job.steps = 3;
  std::vector<train::StepResult> first;
  for (const config::Shard shard :
       {config::Shard::kNone, config::Shard::kOptimizer, config::Shard::kParameters}) {
    for (const char* const schedule : {"1f1b", "gpipe", "zb-h1"}) {
      for (const model::Recompute recompute :
           {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
        options.job.parallelism.shard = shard;
        options.job.parallelism.schedule = schedule;
        options.job.parallelism.recompute = {recompute};
        const absl::StatusOr<RunResult> result = TrainInProcess(options);
        ASSERT_TRUE(result.ok()) << result.status();
        if (first.empty()) first = result->steps;
        ASSERT_EQ(result->steps.size(), first.size());
        for (std::size_t i = 0; i < first.size(); ++i) {
          EXPECT_EQ(result->steps[i].loss, first[i].loss)
              << schedule << ", " << model::Name(recompute) << ", step " << i + 1;
          EXPECT_EQ(result->steps[i].grad_norm, first[i].grad_norm)
              << schedule << ", " << model::Name(recompute) << ", step " << i + 1;
        }
      }
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const auto& [model, mesh] = info.param;
  std::string name = model + "_" + Print(mesh);
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, TensorGolden, ::testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace takt::numerics
