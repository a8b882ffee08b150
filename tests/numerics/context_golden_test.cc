// SPDX-License-Identifier: Apache-2.0
// Families whose sequences several ranks share, against the float64 references of
// tests/golden/models.
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/numerics/golden.h"
#include "tests/numerics/in_process_run.h"

namespace takt::numerics {
namespace {

struct Mesh {
  int context = 1, pipeline = 1, data = 1;
};

std::string Print(const Mesh& mesh) {
  return "cp" + std::to_string(mesh.context) + "_pp" + std::to_string(mesh.pipeline) + "_dp" +
         std::to_string(mesh.data);
}

void PrintTo(const Mesh& mesh, std::ostream* out) { *out << Print(mesh); }

using Case = std::tuple<std::string, Mesh>;

std::vector<Case> Cases() {
  std::vector<Case> cases;
  // Of gpt2-ignore-index, ranks have unequally many scored tokens.
  for (const char* const model : {"gpt2-tiny", "gpt2-ignore-index", "llama-tiny", "qwen2-tiny"}) {
    for (const int context : {2, 4}) {
      for (const int pipeline : {1, 2}) {
        for (const int data : {1, 2}) {
          cases.emplace_back(model, Mesh{.context = context, .pipeline = pipeline, .data = data});
        }
      }
    }
  }
  // Heads are normalised; keys have a window.
  cases.emplace_back("qwen3-tiny", Mesh{.context = 2, .pipeline = 2});
  cases.emplace_back("mistral-tiny", Mesh{.context = 2, .pipeline = 2});
  cases.emplace_back("mistral-tiny", Mesh{.context = 4, .pipeline = 2});
  // Documents share rows, and pieces begin and end within them.
  cases.emplace_back("gpt2-packed", Mesh{.context = 2, .pipeline = 2});
  cases.emplace_back("llama-packed", Mesh{.context = 2, .pipeline = 2});
  cases.emplace_back("llama-packed", Mesh{.context = 4, .pipeline = 2});
  return cases;
}

class ContextGolden : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto& [name, mesh] = GetParam();
    golden_ = LoadGolden(name);
    golden_.job.parallelism.schedule = "1f1b";
    golden_.job.parallelism.pipeline = mesh.pipeline;
    golden_.job.parallelism.data = mesh.data;
    golden_.job.parallelism.context = mesh.context;
  }

  RunResult Train(int steps) const {
    RunOptions options{.job = golden_.job};
    options.job.steps = steps;
    absl::StatusOr<RunResult> result = TrainInProcess(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }

  std::string Title() const { return golden_.name + " " + Print(std::get<Mesh>(GetParam())); }

  GoldenCase golden_;
};

TEST_P(ContextGolden, FirstStepAgreesInLossAndGradients) {
  CompareFirstStep(golden_, Train(1), Title());
}

TEST_P(ContextGolden, TenStepsAgreeInLossNormAndWeights) {
  CompareTraining(golden_, Train(10), Title());
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const auto& [model, mesh] = info.param;
  std::string name = model + "_" + Print(mesh);
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, ContextGolden, ::testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace takt::numerics
