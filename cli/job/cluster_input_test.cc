// SPDX-License-Identifier: Apache-2.0
// `takt plan --cluster`.
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PlanForClusterTest : public testing::Test {
 protected:
  PlanForClusterTest() {
    job_ = directory_.Write("job.yaml", R"(
name: j
model: {family: gpt2, layers: 8, hidden: 64, heads: 4, context: 32, vocab: 256}
data: {train: {path: tokens.bin, format: bytes}}
batch: {global: 16, microbatch: 2}
steps: 10
parallelism: {schedule: gpipe}
)");
  }

  // Plans the job for the cluster that `text` describes.
  Outcome Plan(const std::string& text, std::vector<std::string> more = {}) {
    std::vector<std::string> line = {"plan", job_,  "--cluster", directory_.Write("c.yaml", text),
                                     "-o",   "json"};
    line.insert(line.end(), more.begin(), more.end());
    return RunTakt(line);
  }

  json Best(const std::string& text, std::vector<std::string> more = {}) {
    const Outcome outcome = Plan(text, std::move(more));
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    return json::parse(outcome.out)["candidates"][0];
  }

  TestDirectory directory_;
  std::string job_;
};

constexpr char kGpus[] = R"(
workers: {count: 4, per_host: 2, device: X1, memory_bytes: 80000000000, flops_per_second: {f32: 1e12, bf16: 4e12}}
links:
  same_host: {latency_seconds: 0, bytes_per_second: 1e18}
  between_hosts: {latency_seconds: 1, bytes_per_second: 1e18}
)";

TEST_F(PlanForClusterTest, TakesRatesOfTheFile) {
  const auto step = [&](const char* precision) {
    return Best(kGpus,
                {"--set", "parallelism.pipeline=2", "--set", precision})["predicted_step_seconds"]
        .get<double>();
  };
  EXPECT_NEAR(step("precision=f32") / step("precision=bf16"), 4, 1e-6);
}

TEST_F(PlanForClusterTest, TakesTheLinkBetweenHostsIfOneHostIsTooSmall) {
  const auto step = [&](const char* pipeline) {
    return Best(kGpus, {"--set", pipeline})["predicted_step_seconds"].get<double>();
  };
  EXPECT_LT(step("parallelism.pipeline=2"), 1);
  EXPECT_GT(step("parallelism.pipeline=4"), 6);  // three messages forth and three back
}

TEST_F(PlanForClusterTest, MemoryAndLinkMayBeReplaced) {
  EXPECT_LT(Best(kGpus,
                 {"--set", "parallelism.pipeline=4", "--link", "0,1e18"})["predicted_step_seconds"],
            1);
  EXPECT_EQ(Plan(kGpus, {"--memory", "1000"}).code, ExitCode::kFailed);
}

TEST_F(PlanForClusterTest, PlansForThousandsOfWorkers) {
  const json best = Best("workers: {count: 16384, per_host: 8, device: H100}");
  EXPECT_LE(best["pipeline"], 10);
}

TEST_F(PlanForClusterTest, RefusesWrongFilesAndUsage) {
  const Outcome wrong = Plan("workers:\n- {count: 0, device: cpu}\n");
  EXPECT_EQ(wrong.code, ExitCode::kInvalidInput);
  EXPECT_THAT(wrong.err, HasSubstr("c.yaml:2:11"));
  EXPECT_EQ(Plan("").code, ExitCode::kInvalidInput);
  EXPECT_EQ(RunTakt({"plan", job_, "--cluster", "/nonexistent/c.yaml"}).code,
            ExitCode::kInvalidInput);
  EXPECT_EQ(Plan(kGpus, {"--workers", "2"}).code, ExitCode::kInvalidInput);
  EXPECT_EQ(Plan(std::string((16 << 20) + 1, '#')).code, ExitCode::kInvalidInput);
}

TEST_F(PlanForClusterTest, SaysThatTheFileHasNoGpu) {
  const Outcome outcome = Plan("workers: {count: 2, device: cpu}",
                               {"--set", "parallelism={device: cuda, schedule: gpipe}"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("no worker of the cluster has one"));
}

}  // namespace
}  // namespace takt::cli
