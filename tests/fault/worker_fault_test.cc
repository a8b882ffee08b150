// SPDX-License-Identifier: Apache-2.0
// A worker is killed or stopped at some moment of a job: the job fails in time and says why, nobody
// hangs, the survivors take the next job. README.md lists the commands.
#include <signal.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::ContainsRegex;
using testing::EmulatedJob;
using ::testing::HasSubstr;

// From the fault to the job's end; the lease of five seconds is part of it.
constexpr absl::Duration kLimit = absl::Seconds(10);
constexpr int kRanks = 4;

enum class Moment { kAdmission, kFirstStep, kLater };

struct Fault {
  int signal = SIGKILL;
  int victim = 0;  // rank
  Moment moment = Moment::kLater;
  std::string job;  // what runs: "emulated", "gpt2", "replicas", "sharers"
};

std::string Print(const Fault& fault) {
  const char* const moments[] = {"admission", "first_step", "later"};
  return absl::StrCat(fault.signal == SIGKILL ? "kill" : "stop", "_rank", fault.victim, "_",
                      moments[static_cast<int>(fault.moment)], "_", fault.job);
}
void PrintTo(const Fault& fault, std::ostream* out) { *out << Print(fault); }

std::string Yaml(const Fault& fault) {
  if (fault.job == "gpt2") {
    return "name: gpt2\nmodel: {family: gpt2, layers: 4, hidden: 32, heads: 2, context: 16, vocab: "
           "256}\n"
           "data: {train: {path: data.txt, format: bytes}}\nbatch: {global: 8, microbatch: "
           "1}\nsteps: 1000000\n"
           "parallelism: {pipeline: 4, data: 1, schedule: 1f1b, threads: 1}\n";
  }
  if (fault.job == "replicas") {
    return EmulatedJob{.name = "replicas", .pipeline = 2, .data = 2, .steps = 1'000'000}.Yaml();
  }
  if (fault.job == "sharers") {  // of layers, in which they meet all the time
    return EmulatedJob{.name = "sharers", .pipeline = 2, .tensor = 2, .steps = 1'000'000}.Yaml();
  }
  return EmulatedJob{
      .name = "emulated", .pipeline = kRanks, .steps = 1'000'000, .schedule = "interleaved-1f1b"}
      .Yaml();
}

class WorkerFault : public ::testing::TestWithParam<Fault> {
 protected:
  // Brings the job to the moment, and says who holds the victim's rank.
  std::string Approach() {
    const Fault& fault = GetParam();
    cluster_.Submit(Yaml(fault));
    const v1::Job job = cluster_.AwaitJob(fault.job, [&](const v1::Job& j) {
      if (fault.moment == Moment::kAdmission) return j.ranks_size() == kRanks;
      return j.last_step().step() >= (fault.moment == Moment::kFirstStep ? 1 : 30) ||
             testing::HasEnded(j);
    });
    for (const v1::BoundRank& rank : job.ranks()) {
      if (rank.rank() == fault.victim) return rank.worker();
    }
    ADD_FAILURE() << "nobody holds rank " << fault.victim << ": " << job.reason();
    return "w0";
  }

  // What every rank did last is kept: of the victim as it was last heard of, at most a heartbeat
  // before its end.
  void ExpectFlightRecorders(const v1::Job& job) const {
    ASSERT_EQ(job.fault_size(), kRanks);
    for (const v1::RankStatus& rank : job.fault()) {
      EXPECT_FALSE(rank.instruction().empty()) << rank.DebugString();
      EXPECT_GE(rank.instruction_step(), 1) << rank.DebugString();
      EXPECT_TRUE(rank.has_time()) << rank.DebugString();
      if (rank.rank() == GetParam().victim) continue;
      EXPECT_GT(rank.instruction_seconds(), 0) << rank.DebugString();
      ASSERT_GE(rank.recent_size(), 1) << rank.DebugString();
      EXPECT_LE(rank.recent_size(), 16);
      EXPECT_FALSE(rank.recent(0).instruction().empty());
      EXPECT_GE(rank.recent(0).ended_seconds_ago(),
                rank.recent(rank.recent_size() - 1).ended_seconds_ago());
    }
    // Its neighbours have waited since it fell silent, and say so.
    if (GetParam().signal != SIGSTOP) return;
    const auto stuck = std::ranges::count_if(job.fault(), [](const v1::RankStatus& rank) {
      return rank.instruction_seconds() >= 3 && !rank.waiting_for().empty();
    });
    EXPECT_GE(stuck, 1) << job.DebugString();
    if (GetParam().job != "sharers") return;
    // The rank that shares the victim's layers names the meeting to which the victim did not come.
    const auto in_meeting = std::ranges::count_if(job.fault(), [](const v1::RankStatus& rank) {
      const std::string& instruction = rank.instruction();
      return instruction.find(" gather(") != std::string::npos ||
             instruction.find(" scatter(") != std::string::npos ||
             instruction.find(" exchange(") != std::string::npos;
    });
    EXPECT_GE(in_meeting, 1) << job.DebugString();
  }

  std::set<std::string> Survivors(const std::string& victim) const {
    std::set<std::string> names;
    for (int i = 0; i < kRanks; ++i) names.insert(absl::StrCat("w", i));
    names.erase(victim);
    return names;
  }

  Cluster cluster_{kRanks};
};

TEST_P(WorkerFault, EndsTheJobInTimeNamingTheVictimAndWhatTheOthersWaitedFor) {
  const std::string victim = Approach();
  const absl::Time fault_time = absl::Now();
  cluster_.worker(victim).Signal(GetParam().signal);
  const v1::Job job = cluster_.AwaitEnd(GetParam().job);
  EXPECT_LE(absl::Now() - fault_time, kLimit);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.reason(),
              HasSubstr(absl::StrCat("worker ", victim, " (rank ", GetParam().victim, ")")));
  if (GetParam().moment != Moment::kAdmission) {
    EXPECT_THAT(job.reason(), ContainsRegex("last reported step [0-9]+, instruction [0-9A-Z_]+"));
    // Who computes at that moment waits for nothing, and the reason says that.
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == GetParam().victim) continue;
      const std::string who = absl::StrCat("rank ", rank, " \\(w[0-9]\\) was ");
      EXPECT_THAT(job.reason(),
                  ContainsRegex(who + "(waiting for [^n;]|at [0-9A-Z_]+, waiting for nothing)"));
    }
    ExpectFlightRecorders(job);
  }

  const std::set<std::string> survivors = Survivors(victim);
  cluster_.AwaitIdle(survivors);
  cluster_.Submit(EmulatedJob{.name = "next", .pipeline = 3, .steps = 3}.Yaml());
  EXPECT_EQ(cluster_.AwaitEnd("next").state(), v1::JOB_STATE_SUCCEEDED);
}

INSTANTIATE_TEST_SUITE_P(Each, WorkerFault,
                         ::testing::Values(Fault{SIGKILL, 0, Moment::kAdmission, "emulated"},
                                           Fault{SIGKILL, 3, Moment::kAdmission, "gpt2"},
                                           Fault{SIGKILL, 0, Moment::kFirstStep, "gpt2"},
                                           Fault{SIGKILL, 1, Moment::kLater, "emulated"},
                                           Fault{SIGKILL, 3, Moment::kLater, "gpt2"},
                                           Fault{SIGKILL, 2, Moment::kLater, "replicas"},
                                           Fault{SIGKILL, 3, Moment::kLater, "sharers"},
                                           Fault{SIGSTOP, 0, Moment::kAdmission, "emulated"},
                                           Fault{SIGSTOP, 0, Moment::kLater, "emulated"},
                                           Fault{SIGSTOP, 3, Moment::kFirstStep, "gpt2"},
                                           Fault{SIGSTOP, 1, Moment::kLater, "replicas"},
                                           Fault{SIGSTOP, 0, Moment::kLater, "sharers"}),
                         [](const auto& info) { return Print(info.param); });

// A worker that comes back to life after its job has failed is told so, and is of use again.
TEST(StoppedWorker, IsOfUseAgainOnceItGoesOn) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.AwaitStep("a", 3);
  cluster.worker("w1").Signal(SIGSTOP);
  EXPECT_EQ(cluster.AwaitEnd("a").state(), v1::JOB_STATE_FAILED);
  cluster.worker("w1").Signal(SIGCONT);
  cluster.AwaitIdle({"w0", "w1"});
  cluster.Submit(EmulatedJob{.name = "b", .pipeline = 2, .steps = 3}.Yaml());
  EXPECT_EQ(cluster.AwaitEnd("b").state(), v1::JOB_STATE_SUCCEEDED);
}

// The name is free for a new life at once.
TEST(KilledWorker, ComesBackUnderItsName) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.AwaitStep("a", 3);
  cluster.Kill(cluster.worker("w1"));
  cluster.StartWorker("w1");
  EXPECT_EQ(cluster.AwaitEnd("a").state(), v1::JOB_STATE_FAILED);
  cluster.AwaitIdle({"w0", "w1"});
  cluster.Submit(EmulatedJob{.name = "b", .pipeline = 2, .steps = 3}.Yaml());
  EXPECT_EQ(cluster.AwaitEnd("b").state(), v1::JOB_STATE_SUCCEEDED);
}

// SIGTERM while busy: the job fails naming who left, and the process exits cleanly.
TEST(LeavingWorker, FailsItsJobByNameAndExitsCleanly) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.AwaitStep("a", 3);
  cluster.worker("w1").Signal(SIGTERM);
  ASSERT_TRUE(cluster.worker("w1").WaitUntil(absl::Now() + kLimit));
  EXPECT_EQ(cluster.worker("w1").EndText(), "exit status 0");
  const v1::Job job = cluster.AwaitEnd("a");
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.reason(), HasSubstr("asked to leave"));
  cluster.AwaitIdle({"w0"});
}

}  // namespace
}  // namespace takt
