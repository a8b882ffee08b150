// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/trace_keeper.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/trace/encoding.h"
#include "common/trace/testing/synthetic_trace.h"
#include "coordinator/traces/frame_file.h"
#include "coordinator/traces/step_explainer.h"
#include "gmock/gmock.h"

namespace takt::traces {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TraceKeeperTest : public testing::Test {
 protected:
  TraceKeeperTest() : synthetic_("1f1b", 2, 3, {.num_steps = 5}) {
    TAKT_CHECK(mkdtemp(directory_.data()) != nullptr);
    synthetic_.Get();
  }
  ~TraceKeeperTest() override { fs::remove_all(directory_); }

  TraceKeeperOptions Options() const { return {.directory = directory_ + "/traces"}; }

  job::Launch Launch(const std::string& name, int generation = 1) {
    job::Launch launch{.key = {name, Generation(generation)}};
    launch.plan.mesh = synthetic_.Get().mesh;
    launch.plan.programs = synthetic_.Get().programs;
    launch.plan.costs = synthetic_.Get().predicted;
    for (int rank = 0; rank < 2; ++rank) {
      launch.ranks.push_back({Rank(rank), absl::StrCat("w", rank), "life", "address"});
    }
    return launch;
  }

  // Lets both ranks report `step`.
  void Tell(TraceKeeper& keeper, int step, const std::string& name = "j", int generation = 1) {
    for (int rank = 0; rank < 2; ++rank) TellRank(keeper, step, rank, name, generation);
  }
  void TellRank(TraceKeeper& keeper, int step, int rank, const std::string& name = "j",
                int generation = 1) {
    keeper.Add(absl::StrCat("w", rank), "life", {name, Generation(generation)},
               trace::Encode(synthetic_.Get().ranks[rank].steps[step - 1]));
  }

  static std::vector<std::int64_t> Steps(const absl::StatusOr<trace::JobTrace>& trace) {
    std::vector<std::int64_t> steps;
    if (!trace.ok()) return steps;
    EXPECT_TRUE(trace::CheckJobTrace(*trace).ok());
    for (const trace::StepTrace& step : trace->ranks[0].steps) steps.push_back(step.step.value());
    return steps;
  }

  std::string directory_ = testing::TempDir() + "/takt-traces-XXXXXX";
  trace::SyntheticTrace synthetic_;
};

TEST_F(TraceKeeperTest, GivesBackWhatAllRanksToldOf) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j"));
  for (const int step : {1, 2, 3}) Tell(keeper, step);
  TellRank(keeper, 4, 0);
  EXPECT_THAT(Steps(keeper.Read("j", {})), ElementsAre(3));
  EXPECT_THAT(Steps(keeper.Read("j", {.newest = 2})), ElementsAre(2, 3));
  EXPECT_THAT(Steps(keeper.Read("j", {.first = 1, .last = 2})), ElementsAre(1, 2));
  EXPECT_THAT(Steps(keeper.Read("j", {.first = 2, .last = 9})), ElementsAre(2, 3));
  const auto trace = keeper.Read("j", {}).value();
  EXPECT_EQ(trace.ranks[1].steps[0], synthetic_.Get().ranks[1].steps[2]);
  EXPECT_EQ(trace.programs.size(), 2u);
  EXPECT_EQ(trace.predicted.forward, synthetic_.Get().predicted.forward);
}

TEST_F(TraceKeeperTest, AJobThatAWorkerNamesLeavesNotTheDirectory) {
  TraceKeeper outside({.directory = directory_});
  outside.Begin(Launch("j"));
  TraceKeeper keeper(Options());
  Tell(keeper, 1, "../j");
  EXPECT_FALSE(fs::exists(directory_ + "/j.steps"));
  EXPECT_THAT(keeper.JobsWithNews(), ElementsAre());
}

TEST_F(TraceKeeperTest, NewsAreTakenOnce) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j"));
  TellRank(keeper, 1, 0);
  EXPECT_THAT(keeper.JobsWithNews(), ElementsAre());
  TellRank(keeper, 1, 1);
  Tell(keeper, 2);
  EXPECT_THAT(keeper.JobsWithNews(), ElementsAre("j"));
  EXPECT_THAT(Steps(keeper.TakeNewest("j", 8)), ElementsAre(1, 2));
  EXPECT_THAT(keeper.JobsWithNews(), ElementsAre());
  Tell(keeper, 3);
  EXPECT_THAT(Steps(keeper.TakeNewest("j", 1)), ElementsAre(3));
  keeper.Begin(Launch("j", 2));
  EXPECT_EQ(keeper.TakeNewest("j", 1).num_steps(), 0);
  EXPECT_EQ(keeper.TakeNewest("other", 1).num_steps(), 0);
}

TEST_F(TraceKeeperTest, WhatAllRanksToldOfIsExplainedAndLearned) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j"));
  Tell(keeper, 1);
  bool shown = false;
  absl::Notification learned;
  StepExplainer explainer(
      &keeper,
      [&](const std::string& name, const job::StepSplit& split) {
        EXPECT_EQ(name, "j");
        EXPECT_EQ(split.generation, Generation(1));
        EXPECT_EQ(split.step, StepId(1));
        shown = true;
      },
      [&](const trace::JobTrace& trace) {
        EXPECT_TRUE(shown);
        EXPECT_EQ(trace.job, "j");
        EXPECT_EQ(trace.num_steps(), 1);
        learned.Notify();
      });
  EXPECT_TRUE(learned.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST_F(TraceKeeperTest, SaysWhatThereIsNot) {
  TraceKeeper keeper(Options());
  EXPECT_EQ(keeper.Read("j", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  keeper.Begin(Launch("j"));
  EXPECT_EQ(keeper.Read("j", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  Tell(keeper, 2);
  Tell(keeper, 3);
  const absl::Status status = keeper.Read("j", {.first = 7, .last = 9}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("steps 7 to 9 of job j are not kept: the last that is: 3;"));
  Tell(keeper, 5);
  EXPECT_THAT(std::string(keeper.Read("j", {.first = 4, .last = 4}).status().message()),
              HasSubstr("step 4 of job j is not kept: the nearest that are: 3 and 5;"));
}

TEST_F(TraceKeeperTest, GivesBackTheKeptStepsAroundOne) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j"));
  for (const int step : {1, 2, 4, 5}) Tell(keeper, step);
  const auto around = [&](std::int64_t step, int newest) {
    return Steps(keeper.Read("j", {.first = 4, .last = 6, .newest = newest, .around = step}));
  };
  EXPECT_THAT(around(4, 2), ElementsAre(2, 4, 5));
  EXPECT_THAT(around(4, 1), ElementsAre(4));
  EXPECT_THAT(around(5, 3), ElementsAre(2, 4, 5));  // as the three newest
  EXPECT_THAT(around(1, 99), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(around(3, 2), ElementsAre(4, 5));  // the range, as step 3 is not kept
}

TEST_F(TraceKeeperTest, TakesNothingFromStrangers) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j", 2));
  Tell(keeper, 1, "j", 1);      // an older generation
  Tell(keeper, 1, "other", 2);  // nobody knows it
  const std::string encoded = trace::Encode(synthetic_.Get().ranks[0].steps[0]);
  keeper.Add("w1", "life", {"j", Generation(2)}, encoded);    // another's rank
  keeper.Add("w0", "before", {"j", Generation(2)}, encoded);  // an older life
  keeper.Add("w0", "life", {"j", Generation(2)}, encoded + "x");
  TellRank(keeper, 1, 1, "j", 2);
  EXPECT_EQ(keeper.Read("j", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  TellRank(keeper, 1, 0, "j", 2);
  EXPECT_THAT(Steps(keeper.Read("j", {})), ElementsAre(1));
}

TEST_F(TraceKeeperTest, GoesOnAfterARestart) {
  {
    TraceKeeper keeper(Options());
    keeper.Begin(Launch("j"));
    Tell(keeper, 1);
  }
  TraceKeeper keeper(Options());
  Tell(keeper, 2);
  EXPECT_THAT(Steps(keeper.Read("j", {.newest = 9})), ElementsAre(1, 2));
}

TEST_F(TraceKeeperTest, ForgetsWithTheJobAndItsGeneration) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j", 1));
  Tell(keeper, 1);
  keeper.Begin(Launch("j", 2));
  EXPECT_FALSE(keeper.Read("j", {}).ok());
  Tell(keeper, 2, "j", 2);
  EXPECT_THAT(Steps(keeper.Read("j", {.newest = 9})), ElementsAre(2));
  keeper.Forget("j");
  EXPECT_FALSE(keeper.Read("j", {}).ok());
  EXPECT_TRUE(fs::is_empty(directory_ + "/traces"));
}

TEST_F(TraceKeeperTest, KeepsTheNewestWithinItsBytes) {
  TraceKeeperOptions options = Options();
  options.max_job_bytes = 8 << 10;
  options.max_jobs = 2;
  TraceKeeper keeper(options);
  keeper.Begin(Launch("j"));
  for (int round = 0; round < 40; ++round) {
    for (int step = 1; step <= 5; ++step) Tell(keeper, step);
  }
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(options.directory)) {
    if (entry.path().extension() != ".header") bytes += entry.file_size();
  }
  EXPECT_LE(bytes, 8u << 10);
  EXPECT_GT(bytes, 3u << 10);
  EXPECT_THAT(Steps(keeper.Read("j", {})), ElementsAre(5));
  keeper.Begin(Launch("k"));
  keeper.Begin(Launch("l"));
  int headers = 0;
  for (const auto& entry : fs::directory_iterator(options.directory)) {
    headers += entry.path().extension() == ".header";
  }
  EXPECT_EQ(headers, 2);
  EXPECT_FALSE(keeper.Read("j", {}).ok());
}

TEST_F(TraceKeeperTest, StampsStepsWithTheClockOfTheirWorker) {
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j"));
  keeper.AddClock("w1", "before", 0, 0, 2);                // another life, perhaps another host
  keeper.AddClock("w1", "life", 1000, 500'001'500, 3000);  // half a second ahead, a long way
  keeper.AddClock("w1", "life", 5000, 500'005'600, 5200);  // the same, a short one
  Tell(keeper, 1);
  const auto trace = keeper.Read("j", {}).value();
  EXPECT_EQ(trace.ranks[1].clock.offset_nanos, -500'000'500);
  EXPECT_EQ(trace.ranks[1].clock.error_nanos, 100);
  EXPECT_EQ(trace.ranks[0].clock.error_nanos, 0);
}

TEST_F(TraceKeeperTest, ForgetsTheClockOfAWorkerThatIsSilentForLong) {
  constexpr std::int64_t kHour = 3600ll * 1'000'000'000;
  TraceKeeper keeper(Options());
  keeper.Begin(Launch("j"));
  keeper.AddClock("w0", "life", 0, 0, 10);
  keeper.AddClock("w1", "life", 0, 1000, 10);
  keeper.AddClock("w0", "life", kHour, kHour, kHour + 10);
  keeper.AddClock("another", "life", kHour, kHour, kHour + 20);  // when there is somebody new
  Tell(keeper, 1);
  const auto trace = keeper.Read("j", {}).value();
  EXPECT_EQ(trace.ranks[0].clock.error_nanos, 5);
  EXPECT_EQ(trace.ranks[1].clock.error_nanos, 0);
}

TEST_F(TraceKeeperTest, KeepsInMemoryTheStepsOfTheJobsThatToldLast) {
  TraceKeeperOptions options = Options();
  TraceKeeper roomy(options);
  options.directory += "-2";
  options.max_all_recent_bytes = 1;  // nothing fits
  TraceKeeper narrow(options);
  for (TraceKeeper* keeper : {&roomy, &narrow}) {
    for (const char* job : {"j", "k"}) keeper->Begin(Launch(job));
    Tell(*keeper, 1, "j");
    Tell(*keeper, 1, "k");
  }
  EXPECT_THAT(roomy.JobsWithNews(), ElementsAre("j", "k"));
  EXPECT_THAT(narrow.JobsWithNews(), ElementsAre("k"));
  EXPECT_THAT(Steps(narrow.Read("j", {})), ElementsAre(1));  // from its file
}

TEST_F(TraceKeeperTest, ReadsWhatWasThereWhenItWasOpened) {
  FrameFile file(directory_ + "/frames", 1 << 20);
  ASSERT_TRUE(file.Append("one").ok());
  FrameReader reader = file.Open();
  fs::remove(directory_ + "/frames");
  ASSERT_TRUE(file.Append("of the next generation").ok());
  EXPECT_THAT(reader.Read(), ElementsAre("one"));
}

TEST_F(TraceKeeperTest, AFrameThatThereWasNoRoomForIsGoneWhole) {
  FrameFile file(directory_ + "/frames", 1 << 20);
  ASSERT_TRUE(file.Append("one").ok());
  const auto no_signal = signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit narrow{.rlim_cur = fs::file_size(directory_ + "/frames") + 6,
                      .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &narrow);
  EXPECT_FALSE(file.Append("too long").ok());
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, no_signal);
  ASSERT_TRUE(file.Append("two").ok());
  EXPECT_THAT(file.Open().Read(), ElementsAre("one", "two"));
}

TEST_F(TraceKeeperTest, ReadsUpToATornFrame) {
  FrameFile file(directory_ + "/frames", 1 << 20);
  ASSERT_TRUE(file.Append("one").ok());
  ASSERT_TRUE(file.Append("two").ok());
  fs::resize_file(directory_ + "/frames", fs::file_size(directory_ + "/frames") - 1);
  EXPECT_THAT(file.Open().Read(), ElementsAre("one"));
  std::ofstream(directory_ + "/frames") << "something else entirely";
  EXPECT_THAT(file.Open().Read(), ElementsAre());
}

}  // namespace
}  // namespace takt::traces
