// SPDX-License-Identifier: Apache-2.0
// The golden models through real jobs: started from a Hugging Face folder, trained for ten steps by
// workers, saved, exported by the command line, and compared with the float64 reference.
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_spec_serde.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/integration/command.h"
#include "tests/numerics/golden.h"
#include "tests/testing/cluster.h"

namespace takt::integration {
namespace {

using config::DataFormat;
using config::Precision;
using model::Recompute;

struct Layout {
  int pipeline = 1, data = 1, tensor = 1, expert = 1;
  DataFormat format = DataFormat::kSafetensors;
  Precision precision = Precision::kF32;
  Recompute recompute = Recompute::kNone;
  Precision residual = Precision::kF32;
};

struct Case {
  const char* model;
  Layout layout;
};

std::string NameOf(const Case& c) {
  std::string name = absl::StrCat(c.model, "_pp", c.layout.pipeline, "_dp", c.layout.data,
                                  c.layout.tensor > 1 ? absl::StrCat("_tp", c.layout.tensor) : "",
                                  c.layout.expert > 1 ? absl::StrCat("_ep", c.layout.expert) : "",
                                  c.layout.format == DataFormat::kUint16 ? "_tokens" : "",
                                  c.layout.precision == Precision::kBf16 ? "_bf16" : "",
                                  c.layout.residual == Precision::kBf16 ? "_residual" : "",
                                  c.layout.recompute == Recompute::kSelective ? "_selective" : "",
                                  c.layout.recompute == Recompute::kFull ? "_full" : "");
  std::ranges::replace(name, '-', '_');
  return name;
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << NameOf(c); }

std::vector<Case> Cases() {
  constexpr Layout kLayouts[] = {
      {.pipeline = 1},
      {.pipeline = 2},
      {.pipeline = 3},
      {.pipeline = 1, .data = 2},
      {.pipeline = 2, .data = 2},
      {.pipeline = 3, .data = 2},
      {.pipeline = 2, .format = DataFormat::kUint16},
      {.pipeline = 1, .recompute = Recompute::kSelective},
      {.pipeline = 2, .data = 2, .recompute = Recompute::kSelective},
      {.pipeline = 3, .recompute = Recompute::kFull},
      {.pipeline = 1, .data = 2, .recompute = Recompute::kFull},
      {.pipeline = 1, .precision = Precision::kBf16},
      {.pipeline = 3, .precision = Precision::kBf16},
      {.pipeline = 2, .data = 2, .precision = Precision::kBf16},
      {.pipeline = 2, .precision = Precision::kBf16, .recompute = Recompute::kSelective},
      {.pipeline = 3, .precision = Precision::kBf16, .recompute = Recompute::kFull},
  };
  std::vector<Case> cases;
  for (const char* model :
       {"gpt2-tiny", "gpt2-ignore-index", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny",
        "llama-packed", "gpt2-packed", "mixtral-aux", "qwen3moe-unnormed"}) {
    for (const Layout& layout : kLayouts) {
      // The targets of -100 are no part of a stream of tokens.
      const bool masked = std::string_view(model) == "gpt2-ignore-index";
      if (!masked || layout.format != DataFormat::kUint16) cases.push_back({model, layout});
    }
  }
  for (const char* model : {"mixtral-tiny", "qwen3moe-tiny", "llama-one-kv-head"}) {
    cases.push_back({model, {.pipeline = 2}});
    cases.push_back({model, {.pipeline = 3, .data = 2}});
    cases.push_back({model, {.pipeline = 2, .precision = Precision::kBf16}});
  }
  for (const char* model : {"gpt2-tiny", "llama-tiny", "mixtral-tiny"}) {
    cases.push_back(
        {model, {.pipeline = 2, .precision = Precision::kBf16, .residual = Precision::kBf16}});
  }
  for (const char* model : {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "llama-packed"}) {
    cases.push_back({model, {.pipeline = 2, .tensor = 2}});
    cases.push_back({model, {.pipeline = 1, .tensor = 4, .recompute = Recompute::kFull}});
  }
  for (const char* model : {"mixtral-aux", "qwen3moe-tiny"})
    cases.push_back({model, {.pipeline = 2, .data = 2, .expert = 2}});
  return cases;
}

class GoldenModels : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { cluster_ = new testing::Cluster(6); }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  static testing::Cluster* cluster_;
};
testing::Cluster* GoldenModels::cluster_ = nullptr;

TEST_P(GoldenModels, TrainSaveAndExportWithinTheTolerances) {
  const auto& [model, layout] = GetParam();
  const numerics::GoldenCase golden = numerics::LoadGolden(model);
  ASSERT_FALSE(golden.steps.empty());
  config::JobSpec job = golden.job;
  job.name = NameOf(GetParam());
  if (layout.format == DataFormat::kUint16) {
    job.train = {{.path = golden.directory + "/tokens.bin", .format = layout.format}};
  }
  job.parallelism.pipeline = layout.pipeline;
  job.parallelism.data = layout.data;
  job.parallelism.tensor = layout.tensor;
  job.parallelism.expert = layout.expert;
  job.parallelism.threads = 1;
  job.parallelism.recompute = {layout.recompute};
  job.precision = layout.precision;
  job.residual = layout.residual;
  job.checkpoint = {.directory = absl::StrCat(cluster_->directory(), "/", job.name)};
  cluster_->Submit(config::ToProto(job));
  const v1::Job ended = cluster_->AwaitEnd(job.name);
  ASSERT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();

  const std::string out = job.checkpoint->directory + "-exported";
  Command exporting("takt", {"checkpoint", "export", job.checkpoint->directory, out});
  ASSERT_EQ(exporting.Wait(), "exit status 0") << exporting.err();

  numerics::Comparison compare(job.name);
  const numerics::Tolerances& allowed = numerics::TolerancesOf(job.precision);
  const std::vector<v1::StepReport> steps = cluster_->Steps(job.name);
  ASSERT_EQ(steps.size(), golden.steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    compare.Absolute("loss", absl::StrCat("step ", i + 1), steps[i].loss(), golden.steps[i].loss,
                     allowed.loss_abs);
  }
  numerics::CompareFinalWeights(golden, numerics::ReadTensors(out + "/model.safetensors"), allowed,
                                compare);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModels, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace takt::integration
