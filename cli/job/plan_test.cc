// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/config/testing/jobs.h"
#include "common/model/model.h"
#include "common/plan/plan.h"
#include "common/profile/profile_serde.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
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

  // Plans for workers of usual rates.
  Outcome PlanFor(const char* workers, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"plan", job_, "--workers", workers, "--no-profile"});
    return RunTakt(more);
  }

  static json Parse(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    return json::parse(outcome.out);
  }

  TestDirectory directory_;
  std::string job_;
};

TEST_F(PlanTest, SharesLayersAndSaysWhyNotMore) {
  const json plan = Parse(PlanFor(
      "8", {"--set", "parallelism.pipeline=1", "--set", "parallelism.tensor=auto", "-o", "json"}));
  ASSERT_FALSE(plan["candidates"].empty());
  std::string reason;
  for (const json& refusal : plan["refused"]) {
    if (refusal["tensor"] == 8) reason = refusal["reason"].get<std::string>();
  }
  EXPECT_THAT(reason, HasSubstr("must divide model.heads (4); use at most 4"));
  const json two = Parse(PlanFor("4", {"--set", "parallelism.tensor=2", "-o", "json"}));
  for (const json& candidate : two["candidates"]) EXPECT_EQ(candidate["tensor"], 2);
  const Outcome wrong = PlanFor("4", {"--set", "parallelism.tensor=3"});
  EXPECT_EQ(wrong.code, ExitCode::kInvalidInput);
  EXPECT_THAT(wrong.err, HasSubstr("must divide model.heads (4); use one of 1, 2, 4"));
}

TEST_F(PlanTest, NamesTheAxesAndShardsOfEachWay) {
  const json plan = Parse(PlanFor("4", {"--set", "parallelism={pipeline: 1, data: 2, context: 2}",
                                        "--set", "parallelism.shard=optimizer", "-o", "json"}));
  ASSERT_FALSE(plan["candidates"].empty());
  for (const json& candidate : plan["candidates"]) {
    EXPECT_EQ(candidate["shard"], "optimizer");
    EXPECT_EQ(candidate["tensor"], 1);
    EXPECT_EQ(candidate["context"], 2);
    EXPECT_EQ(candidate["expert"], 1);
  }
  const json whole = Parse(PlanFor("4", {"-o", "json"}));
  for (const json& candidate : whole["candidates"]) EXPECT_EQ(candidate["shard"], "none");
}

TEST_F(PlanTest, RanksWaysToRunAJob) {
  const json plan = Parse(PlanFor("4", {"--top", "3", "-o", "json"}));
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
  EXPECT_THAT(plan["profile"]["measured"], IsEmpty());
  EXPECT_THAT(plan["profile"]["interpolated"], IsEmpty());
  EXPECT_THAT(plan["profile"]["guessed"], Not(IsEmpty()));
}

TEST_F(PlanTest, SaysThatTimesAreOfCoresWhereTheJobComputesOnGpus) {
  for (const char* const set : {"parallelism.device=cuda", "parallelism.transport=nccl"}) {
    const Outcome outcome = PlanFor("2", {"--set", set});
    EXPECT_EQ(outcome.code, ExitCode::kDone);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("times are those of cores"), HasSubstr("--cluster")));
  }
  EXPECT_THAT(PlanFor("2", {}).err, Not(HasSubstr("times are those of cores")));
}

TEST_F(PlanTest, KeepsWhatTheJobNames) {
  const json plan = Parse(PlanFor(
      "4", {"--set", "parallelism={pipeline: 2, schedule: 1f1b, recompute: full}", "-o", "json"}));
  ASSERT_THAT(plan["candidates"], SizeIs(1));
  EXPECT_EQ(plan["candidates"][0]["pipeline"], 2);
  EXPECT_EQ(plan["candidates"][0]["schedule"], "1f1b");
  EXPECT_EQ(plan["candidates"][0]["recompute"], (json{"full", "full"}));
}

TEST_F(PlanTest, SaysWhatRanksSendToOneAnother) {
  const json plan = Parse(
      PlanFor("4", {"--set", "parallelism={pipeline: 3, schedule: 1f1b, data: 1}", "-o", "json"}));
  const json& messages = plan["candidates"][0]["messages"];
  ASSERT_THAT(messages, SizeIs(4));  // forth and back between neighbours
  EXPECT_EQ(messages[1], json({{"from", 1}, {"to", 0}, {"bytes", 8 * 16384}, {"count", 8}}));
  const Outcome text = PlanFor("4", {"--set", "parallelism={pipeline: 3, schedule: 1f1b}"});
  EXPECT_THAT(text.out, HasSubstr("\nrank 1 to 0         8      16 KiB   128 KiB\n"));
  const Outcome alone = PlanFor("1");
  EXPECT_THAT(alone.out, Not(HasSubstr("MESSAGES OF A STEP")));
}

TEST_F(PlanTest, ChoosesDataAndMicrobatchOnlyWhereTheJobSaysAuto) {
  const auto first = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--set", "parallelism.schedule=1f1b", "--link", "0,1e30"});
    Outcome outcome = PlanFor("4", more);
    more.insert(more.end(), {"-o", "json"});
    const json plan = Parse(PlanFor("4", more));
    for (const json& refusal : plan["refused"]) {
      EXPECT_TRUE(refusal.contains("microbatch"));
      EXPECT_EQ(refusal["chunks"].is_null(), refusal["stage_layers"].is_null());
    }
    return std::pair(plan["candidates"][0], outcome.out);
  };
  const auto [closed, closed_text] = first({});
  EXPECT_EQ(closed["data"], 1);
  EXPECT_EQ(closed["microbatch"], 2);
  EXPECT_THAT(closed_text, Not(HasSubstr("MICROBATCH")));
  const auto [chosen, chosen_text] =
      first({"--set", "parallelism.data=auto", "--set", "batch.microbatch=auto"});
  EXPECT_EQ(chosen["data"], 4);  // replicas have no bubble, and sums are free
  EXPECT_EQ(chosen["pipeline"], 1);
  EXPECT_EQ(chosen["microbatch"], 1);  // it holds least
  EXPECT_THAT(chosen_text, AllOf(HasSubstr("PIPELINE, MICROBATCH"), HasSubstr("1 x 4, 1")));
}

TEST_F(PlanTest, PrintsATableAndThenWhy) {
  const Outcome outcome = PlanFor("2", {"--top", "2"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("TOKENS/S"), HasSubstr("\n1: "), HasSubstr("\n2: "),
                                 HasSubstr("NOT HERE")));
  EXPECT_THAT(outcome.out, HasSubstr("\ntimes: measured 0, interpolated 0, guessed "));
  EXPECT_THAT(outcome.out, HasSubstr("\n  guessed: "));
}

TEST_F(PlanTest, WhatFitsNowhereExitsWith1AndSaysWhatItLacks) {
  const Outcome outcome = PlanFor("2", {"--memory", "1000", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  const json plan = json::parse(outcome.out);
  EXPECT_THAT(plan["candidates"], SizeIs(0));
  const json& refusal = plan["refused"][0];
  EXPECT_THAT(refusal["reason"].get<std::string>(), HasSubstr("1000 B"));
  for (const json& each : plan["refused"]) {
    if (each["stage_layers"].is_null()) continue;
    const int stages = each["pipeline"].get<int>() * each["chunks"].get<int>();
    EXPECT_THAT(each["stage_layers"], SizeIs(stages));
    EXPECT_THAT(each["recompute"], SizeIs(stages));
  }
  EXPECT_FALSE(refusal["stage_layers"].is_null());
  EXPECT_THAT(outcome.err, HasSubstr("needs more memory than a worker has for a rank"));
  EXPECT_THAT(outcome.err, HasSubstr("\"exit_code\":1,"));
}

TEST_F(PlanTest, RefusesWaysThatNeedMoreWorkersThanThereAre) {
  const std::vector<std::string> two = {"--set", "parallelism={pipeline: 2, schedule: 1f1b}", "-o",
                                        "json"};
  const Outcome outcome = PlanFor("1", two);
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  const json plan = json::parse(outcome.out);
  EXPECT_THAT(plan["candidates"], IsEmpty());
  ASSERT_THAT(plan["refused"], Not(IsEmpty()));
  EXPECT_EQ(plan["refused"][0]["reason"], "needs 2 workers, and there is 1");
  EXPECT_THAT(outcome.err, HasSubstr("parallelism.pipeline is 2"));
  EXPECT_THAT(Parse(PlanFor("2", two))["candidates"], SizeIs(1));
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

TEST_F(PlanTest, TakesTheTimesThatWorkersMeasured) {
  const plan::Host host{.machine = "a processor", .threads = 1, .workers = 2};
  const config::JobSpec job = config::SmallGpt2Job();
  const model::Model model = *model::BuildModel(job.model, job.microbatch);
  double seconds = 1;
  FakeCoordinator coordinator;
  coordinator.workers = [&](auto&, auto&, v1::ListWorkersResponse& response) {
    for (int i = 0; i < host.workers; ++i) {
      v1::Worker& worker = *response.add_workers();
      worker.set_state(v1::WORKER_STATE_IDLE);
      worker.set_host("h");
      worker.set_processor(host.machine);
      worker.set_cores(host.threads * host.workers);
    }
    return grpc::Status::OK;
  };
  coordinator.get_profile = [&](auto&, auto&, v1::GetProfileResponse& response) {
    profile::Profile known;
    for (const model::Layer& layer : model.layers) {
      const profile::LayerShape shape = profile::ShapeOf(model, layer, model::Recompute::kNone);
      known.AddLayer(
          {shape, host.ConditionsOf(2, std::nullopt, config::DeviceKind::kCpu)},
          {.work = profile::WorkOf(layer, model::Recompute::kNone),
           .seconds = {.forward = seconds, .input_grad = seconds, .weight_grad = seconds}});
    }
    *response.mutable_profile() = profile::ToProto(known);
    return grpc::Status::OK;
  };
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", job_, "--set", "parallelism={pipeline: 2, schedule: 1f1b}",
                               "--link", "0,1e30", "-o", "json"});
    return Parse(RunTakt(coordinator, more));
  };
  const auto step = [&](const json& plan) {
    return plan["candidates"][0]["predicted_step_seconds"].get<double>();
  };
  const json measured = plan({});
  EXPECT_THAT(measured["profile"]["measured"], Not(IsEmpty()));
  // Eight microbatches of ten layers on two ranks, each of whose passes takes a second.
  EXPECT_GT(step(measured), 8 * 5 * 3);
  seconds = 2;
  EXPECT_NEAR(step(plan({})) / step(measured), 2, 1e-3);
  const json guessed = plan({"--no-profile"});
  EXPECT_THAT(guessed["profile"]["measured"], IsEmpty());
  EXPECT_LT(step(guessed), 1);
}

TEST_F(PlanTest, SaysWhyNothingWasMeasuredHereAndPlansFromUsualRates) {
  // The programs of a cluster are not where this test says.
  const Outcome missing = RunTakt({"plan", job_, "--workers", "2", "-o", "json"});
  EXPECT_THAT(Parse(missing)["profile"]["measured"], IsEmpty());
  EXPECT_THAT(missing.err, HasSubstr("planning from usual rates, as not all could be measured: "));
  const Outcome many = RunTakt({"plan", job_, "--workers", "65"});
  EXPECT_EQ(many.code, ExitCode::kDone) << many.err;
  EXPECT_THAT(many.err, HasSubstr("workers, not 65"));
  EXPECT_EQ(PlanFor("65").err, "");
}

TEST_F(PlanTest, NeedsWorkersOrTheirNumber) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  const Outcome outcome = RunTakt(coordinator, {"plan", job_});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("takt plan --workers N"));
}

TEST_F(PlanTest, WritesAPageToANewFile) {
  const std::string path = directory_.Path("plan.html");
  const auto page = [&] {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const Outcome outcome = RunTakt({"plan", job_, "--workers", "2", "--top", "2", "--html", path});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("TOKENS/S"));
  EXPECT_THAT(outcome.err, HasSubstr("plan.html: 2 of 2 candidates"));
  EXPECT_THAT(page(), AllOf(HasSubstr("Plan of job j"), HasSubstr("</html>")));

  // It is never overwritten, and nobody waits for a plan to hear that.
  directory_.Write("plan.html", "mine");
  const Outcome again = RunTakt({"plan", job_, "--workers", "2", "--html", path});
  EXPECT_EQ(again.code, ExitCode::kInvalidInput);
  EXPECT_EQ(again.out, "");
  EXPECT_THAT(again.err, HasSubstr("must not be there yet"));
  EXPECT_EQ(page(), "mine");
}

TEST_F(PlanTest, RefusesWhatMakesNoSense) {
  for (const char* link : {"1", "1,0", "-1,5", "a,b", "1,2,3", "nan,1", "0,inf"}) {
    const Outcome outcome = PlanFor("2", {"--link", link});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << link;
    EXPECT_THAT(outcome.err, HasSubstr("LATENCY,BYTES_PER_SECOND")) << link;
  }
  EXPECT_EQ(PlanFor("0").code, ExitCode::kInvalidInput);
  EXPECT_EQ(PlanFor("2", {"--memory", "-1"}).code, ExitCode::kInvalidInput);
  EXPECT_EQ(RunTakt({"plan", "missing.yaml", "--workers", "2"}).code, ExitCode::kInvalidInput);
  const Outcome schedule = PlanFor("2", {"--set", "parallelism.schedule=1f2b"});
  EXPECT_EQ(schedule.code, ExitCode::kInvalidInput);
  EXPECT_THAT(schedule.err, HasSubstr("parallelism.schedule is 1f2b"));
}

}  // namespace
}  // namespace takt::cli
