// SPDX-License-Identifier: Apache-2.0
// What families and optimizers have beside the weights of a GPT is saved and loaded.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/saving_jobs.h"

namespace takt {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class SavedStateTest : public SavingJobs {};

// What a family adds to a block is saved and loaded: norms of heads, experts, routers and the bias
// that balances them.
TEST_F(SavedStateTest, EveryFamilyResumesDigitForDigit) {
  constexpr char kShape[] =
      "layers: 4, hidden: 16, heads: 2, kv_heads: 1, inner: 32, context: 16, vocab: 256";
  constexpr char kExperts[] = "count: 4, per_token: 2, auxiliary_loss: 0.01";
  const std::map<std::string, std::string> models = {
      {"qwen2", absl::StrCat("family: qwen2, ", kShape)},
      {"qwen3", absl::StrCat("family: qwen3, head_size: 16, ", kShape)},
      {"mistral", absl::StrCat("family: mistral, attention_window: 5, ", kShape)},
      {"mixtral", absl::StrCat("family: mixtral, experts: {", kExperts, "}, ", kShape)},
      {"qwen3-moe", absl::StrCat("family: qwen3_moe, experts: {inner: 16, dense_blocks: [0], ",
                                 kExperts, "}, ", kShape)},
      {"sigmoid", absl::StrCat("family: qwen3_moe, experts: {inner: 16, scores: sigmoid, ",
                               kExperts, "}, ", kShape)}};
  for (const auto& [name, model] : models) {
    TrainingJob job{.name = name + "-straight",
                    .model = absl::StrCat("{", model, "}"),
                    .directory = Directory(name + "-straight")};
    const std::vector<Step> straight = Train(job);
    ASSERT_EQ(straight.size(), 20u) << name;
    job.name = name + "-half";
    job.directory = Directory(name + "-half");
    job.steps = 10;
    Train(job);
    ExpectLatest(job.directory);
    job.name = name + "-rest";
    job.steps = 20;
    job.parallelism = "pipeline: 3, schedule: zb-h1";
    EXPECT_EQ(Train(job), From(straight, 11)) << name;
  }
}

// An optimizer has as many moments as it needs, and only these are saved and loaded.
TEST_F(SavedStateTest, OtherOptimizersResumeWithTheirMoments) {
  struct Case {
    std::string name, optimizer;
    int files;  // of tensors: weights of six layers, and moments if there are any
    std::string schedule = "1f1b", other_schedule = "zb-h1";
  };
  for (const Case& c : {Case{"lion", "lion: {learning_rate: 1.0e-3}", 12},
                        Case{"sgd", "sgd: {learning_rate: 0.1}", 12},
                        Case{"plain", "sgd: {learning_rate: 0.1, momentum: 0}", 6},
                        Case{"muon", "muon: {learning_rate: 1.0e-3}", 12},
                        Case{"fed-back", "adamw: {clip_norm: 0}, error_feedback: 1", 12,
                             "pipedream-2bw", "pipedream-2bw"},
                        Case{"fed-back-alone",
                             "sgd: {learning_rate: 0.1, momentum: 0, clip_norm: 0}, "
                             "error_feedback: 0.5",
                             12, "pipedream-2bw", "pipedream-2bw"}}) {
    TrainingJob job{.name = c.name + "-straight",
                    .parallelism = "pipeline: 2, schedule: " + c.schedule,
                    .directory = Directory(c.name + "-straight"),
                    .optimizer = c.optimizer};
    const std::vector<Step> straight = Train(job);
    ASSERT_EQ(straight.size(), 20u);
    EXPECT_LT(straight.back().loss, straight.front().loss) << c.name;
    job.name = c.name + "-half";
    job.directory = Directory(c.name + "-half");
    job.steps = 10;
    Train(job);
    ExpectLatest(job.directory);
    int files = 0;
    for (const fs::directory_entry& file : fs::directory_iterator(job.directory + "/step-00000010"))
      files += file.path().extension() == ".safetensors" ? 1 : 0;
    EXPECT_EQ(files, c.files) << c.name;
    job.name = c.name + "-rest";
    job.steps = 20;
    job.parallelism = "pipeline: 3, schedule: " + c.other_schedule;
    EXPECT_EQ(Train(job), From(straight, 11)) << c.name;
  }
  TrainingJob adamw{.name = "adamw", .directory = Directory("lion-half")};
  cluster_.Submit(adamw.Yaml());
  const v1::Job refused = cluster_.AwaitEnd(adamw.name);
  EXPECT_EQ(refused.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(refused.invalid_input()) << refused.reason();
  EXPECT_THAT(refused.reason(), HasSubstr("optimizer is adamw: the checkpoint is of a job with "
                                          "lion, whose moments adamw cannot use"));
  TrainingJob alone{.name = "without-feedback",
                    .parallelism = "pipeline: 2, schedule: pipedream-2bw",
                    .directory = Directory("fed-back-half"),
                    .optimizer = "adamw: {clip_norm: 0}"};
  cluster_.Submit(alone.Yaml());
  EXPECT_THAT(cluster_.AwaitEnd(alone.name).reason(),
              HasSubstr("optimizer.error_feedback is 0: the checkpoint is of a job with 1"));
}

}  // namespace
}  // namespace takt
