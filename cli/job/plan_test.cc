// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    job_ = directory_.Write("job.yaml", R"(
name: j
model: {family: gpt2, layers: 8, hidden: 64, heads: 4, context: 32, vocab: 256}
data: {train: {path: tokens.bin, format: bytes}}
batch: {global: 16, microbatch: 2}
steps: 10
)");
  }

  static json Parse(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    return json::parse(outcome.out);
  }

  TestDirectory directory_;
  std::string job_;
};

TEST_F(PlanTest, RanksWaysToRunAJob) {
  const json plan = Parse(RunTakt({"plan", job_, "--workers", "4", "--top", "3", "-o", "json"}));
  ASSERT_THAT(plan["candidates"], SizeIs(3));
  for (const json& candidate : plan["candidates"]) {
    const double step = candidate["predicted_step_seconds"];
    double sum = 0;
    for (const auto& [cause, seconds] : candidate["parts"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, step, 1e-9 * step);
    EXPECT_LE(candidate["lower_bound_seconds"], step * (1 + 1e-9));
    EXPECT_NEAR(candidate["predicted_tokens_per_second"], 16 * 32 / step, 1e-6 * 16 * 32 / step);
    EXPECT_NEAR(candidate["parts"]["compute"].get<double>() / step,
                1 - candidate["predicted_bubble_fraction"].get<double>(), 1e-9);
    EXPECT_GT(candidate["mfu"], 0);
    EXPECT_LE(candidate["mfu"], 1);
    EXPECT_THAT(candidate["memory_bytes"], SizeIs(candidate["pipeline"].get<int>()));
    EXPECT_THAT(candidate["stage_layers"],
                SizeIs(candidate["pipeline"].get<int>() * candidate["chunks"].get<int>()));
    int blocks = 0;
    for (const json& count : candidate["stage_layers"]) blocks += count.get<int>();
    EXPECT_EQ(blocks, 8);
    EXPECT_FALSE(candidate["why"].get<std::string>().empty());
  }
  EXPECT_FALSE(plan["refused"].empty());
  EXPECT_EQ(plan["profile"]["measured"], 0);
  EXPECT_EQ(plan["profile"]["guessed"], 10);
}

TEST_F(PlanTest, KeepsWhatTheJobNames) {
  const json plan =
      Parse(RunTakt({"plan", job_, "--workers", "4", "--set",
                     "parallelism={pipeline: 2, schedule: 1f1b, recompute: full}", "-o", "json"}));
  ASSERT_THAT(plan["candidates"], SizeIs(1));
  EXPECT_EQ(plan["candidates"][0]["pipeline"], 2);
  EXPECT_EQ(plan["candidates"][0]["schedule"], "1f1b");
  EXPECT_EQ(plan["candidates"][0]["recompute"], (json{"full", "full"}));
}

TEST_F(PlanTest, PrintsATableAndThenWhy) {
  const Outcome outcome = RunTakt({"plan", job_, "--workers", "2", "--top", "2"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("TOKENS/S"), HasSubstr("\n1: "), HasSubstr("\n2: "),
                                 HasSubstr("NOT HERE")));
}

TEST_F(PlanTest, WhatFitsNowhereExitsWith1AndSaysWhatItLacks) {
  const Outcome outcome =
      RunTakt({"plan", job_, "--workers", "2", "--memory", "1000", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  const json plan = json::parse(outcome.out);
  EXPECT_THAT(plan["candidates"], SizeIs(0));
  EXPECT_THAT(plan["refused"][0]["reason"].get<std::string>(), HasSubstr("1000 B"));
  EXPECT_THAT(outcome.err, HasSubstr("needs more memory than a worker has for a rank"));
}

TEST_F(PlanTest, PlansForTheCoordinatorsWorkers) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
    for (int i = 0; i < 4; ++i) {
      v1::Worker& worker = *response.add_workers();
      worker.set_state(v1::WORKER_STATE_IDLE);
      worker.set_host("h");
      worker.set_memory_bytes(std::int64_t{1} << 34);
      worker.set_matmul_flops_per_second(1e9);
      worker.set_bf16_matmul_flops_per_second(4e9);
      worker.set_drained(i == 3);
    }
    return grpc::Status::OK;
  };
  const auto step = [&](const char* set) {
    const json plan =
        Parse(RunTakt(coordinator, {"plan", job_, "--link", "0,1e30", "--set",
                                    "parallelism={schedule: gpipe}", "--set", set, "-o", "json"}));
    EXPECT_LE(plan["candidates"][0]["pipeline"], 3);
    return plan["candidates"][0]["predicted_step_seconds"].get<double>();
  };
  EXPECT_NEAR(step("precision=f32") / step("precision=bf16"), 4, 1e-6);
}

TEST_F(PlanTest, NeedsWorkersOrTheirNumber) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  const Outcome outcome = RunTakt(coordinator, {"plan", job_});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("takt plan --workers N"));
}

TEST_F(PlanTest, RefusesWhatMakesNoSense) {
  for (const char* link : {"1", "1,0", "-1,5", "a,b", "1,2,3", "nan,1", "0,inf"}) {
    const Outcome outcome = RunTakt({"plan", job_, "--workers", "2", "--link", link});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << link;
    EXPECT_THAT(outcome.err, HasSubstr("LATENCY,BYTES_PER_SECOND")) << link;
  }
  EXPECT_EQ(RunTakt({"plan", job_, "--workers", "0"}).code, ExitCode::kInvalidInput);
  EXPECT_EQ(RunTakt({"plan", job_, "--workers", "2", "--memory", "-1"}).code,
            ExitCode::kInvalidInput);
  EXPECT_EQ(RunTakt({"plan", "missing.yaml", "--workers", "2"}).code, ExitCode::kInvalidInput);
  const Outcome schedule =
      RunTakt({"plan", job_, "--workers", "2", "--set", "parallelism.schedule=1f2b"});
  EXPECT_EQ(schedule.code, ExitCode::kInvalidInput);
  EXPECT_THAT(schedule.err, HasSubstr("parallelism.schedule is 1f2b"));
}

}  // namespace
}  // namespace takt::cli
