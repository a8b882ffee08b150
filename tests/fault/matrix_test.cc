// SPDX-License-Identifier: Apache-2.0
// Each fault at each phase of a job. The job succeeds, each step is committed once, and its losses
// are those of a job that nobody disturbed. A job that makes no step for half a minute fails its
// cell, so that a run that hangs does not pass. README.md lists the commands.
#include <signal.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/fault/small_job.h"
#include "tests/testing/cluster.h"
#include "tests/testing/link.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::ControlLink;
using testing::DataLink;
using testing::SmallJob;

constexpr int kSteps = 800;
constexpr int kSaveEvery = 20;
constexpr char kJob[] = "j";
// The lease is 5 s, so a worker that is silent for this long is given up, or vouched for.
constexpr absl::Duration kOutage = absl::Seconds(7);
constexpr absl::Duration kNoProgress = absl::Seconds(30);
constexpr absl::Duration kReduceDelay = absl::Milliseconds(2);
const testing::LinkShape kSlowShape = {.delay = absl::Milliseconds(150), .bytes_per_second = 32e3};

// The first two hurt a process, the next three its link to the coordinator, the last three its link
// to the other rank.
enum class Fault { kKill, kStop, kDrop, kReset, kSlow, kDataDrop, kDataReset, kDataSlow };
constexpr std::array kFaults = {"kill", "stop",      "drop",       "reset",
                                "slow", "data_drop", "data_reset", "data_slow"};

bool IsOfDataLink(Fault fault) { return fault >= Fault::kDataDrop; }

enum class Phase {
  kSubmit,
  kPlan,
  kPrepare,
  kConnect,
  kLoad,
  kStep,
  kReduce,
  kSave,
  kCommit,
  kPause,
  kDrain,
  kResume
};
constexpr std::array kPhases = {"submit", "plan", "prepare", "connect", "load",  "step",
                                "reduce", "save", "commit",  "pause",   "drain", "resume"};

using Cell = std::tuple<Fault, Phase>;

std::string Print(const Cell& cell) {
  return absl::StrCat(kFaults[static_cast<std::size_t>(std::get<0>(cell))], "_",
                      kPhases[static_cast<std::size_t>(std::get<1>(cell))]);
}

// Two ranks: of a pipeline, or replicas, which reduce gradients. They share memory, unless their
// link is of interest.
SmallJob JobFor(const Cell& cell) {
  const auto [fault, phase] = cell;
  SmallJob job = {.name = kJob, .steps = kSteps, .save_every = kSaveEvery};
  if (phase == Phase::kReduce)
    job.parallelism = "data: 2, pipeline: 1, transport: gloo";
  else if (IsOfDataLink(fault))
    job.parallelism = "pipeline: 2, transport: gloo";
  return job;
}

const std::vector<double>& Undisturbed(const SmallJob& job) {
  static std::map<std::string, std::vector<double>> losses;  // by parallelism
  const auto [it, is_new] = losses.try_emplace(job.parallelism);
  if (is_new) it->second = testing::UndisturbedLosses(job);
  return it->second;
}

// Three workers, each with a link of its own to the coordinator and one to its peers, and a job of
// two ranks.
class Matrix : public ::testing::TestWithParam<Cell> {
 protected:
  Matrix() {
    for (const char* const name : {"w0", "w1", "w2"}) {
      links_[name] = std::make_unique<ControlLink>(cluster_.directory() + "/to-" + name,
                                                   cluster_.directory() + "/socket");
      cluster_.StartWorker(name, links_[name]->address());
    }
    cluster_.AwaitIdle({"w0", "w1", "w2"});
  }

  static bool IsBound(const v1::Job& job) { return job.ranks_size() > 0 || testing::HasEnded(job); }
  static bool IsPaused(const v1::Job& job) {
    return job.state() == v1::JOB_STATE_PAUSED || testing::HasEnded(job);
  }

  // Returns the worker of the last rank, or one that will probably get it. Rank 0 listens for the
  // data of the other one, so a fault of that link is at its worker.
  std::string Victim(Fault fault) {
    const v1::Job job = cluster_.Job(kJob);
    if (job.ranks_size() == 0) return "w1";
    return job.ranks(IsOfDataLink(fault) ? 0 : job.ranks_size() - 1).worker();
  }

  using DataLinks = std::map<std::string, std::unique_ptr<DataLink>>;
  static DataLinks MakeDataLinks() {
    DataLinks links;
    links["w0"] = std::make_unique<DataLink>("127.0.7.1");
    links["w1"] = std::make_unique<DataLink>("127.0.7.2");
    links["w2"] = std::make_unique<DataLink>("127.0.7.3");
    return links;
  }
  static std::map<std::string, testing::WorkerPlace> PlacesAt(const DataLinks& links) {
    std::map<std::string, testing::WorkerPlace> places;
    for (const auto& [name, link] : links) places[name].arguments = link->WorkerArguments();
    return places;
  }

  // Brings the job to the phase, as exactly as it can be told from outside.
  void Approach(Phase phase) {
    if (phase != Phase::kSubmit) cluster_.Submit(job_.Yaml());
    switch (phase) {
      case Phase::kSubmit:
      case Phase::kPlan:
        break;
      case Phase::kPrepare:
        cluster_.AwaitJob(kJob, IsBound);
        break;
      case Phase::kConnect:
        cluster_.AwaitJob(kJob, IsBound);
        absl::SleepFor(absl::Milliseconds(20));  // ranks connect for about as long
        break;
      case Phase::kLoad:
        PauseAndResume();
        cluster_.AwaitJob(kJob, IsBound);
        break;
      case Phase::kStep:
        cluster_.AwaitStep(kJob, kSaveEvery + kSaveEvery / 2);
        break;
      case Phase::kReduce:
        // Sums then take most of a step.
        for (const auto& [name, link] : data_links_) link->Shape({.delay = kReduceDelay});
        cluster_.AwaitStep(kJob, kSaveEvery + kSaveEvery / 2);
        break;
      case Phase::kSave:
        cluster_.AwaitStep(kJob, 2 * kSaveEvery);
        break;
      case Phase::kCommit:
        AwaitCommit();
        break;
      case Phase::kPause:
        cluster_.AwaitStep(kJob, kSaveEvery);
        cluster_.Pause(kJob);
        break;
      case Phase::kDrain:
        cluster_.AwaitStep(kJob, kSaveEvery);
        drained_ = Victim(Fault::kStop);
        cluster_.Drain(drained_);
        break;
      case Phase::kResume:
        PauseAndResume();
        break;
    }
  }
  void PauseAndResume() {
    cluster_.AwaitStep(kJob, kSaveEvery);
    cluster_.Pause(kJob);
    cluster_.AwaitJob(kJob, IsPaused);
    cluster_.Resume(kJob);
  }
  // Until a worker has claimed a directory to make it visible (docs/checkpoints.md), or, if that
  // was too quick to be seen, until a checkpoint is there.
  void AwaitCommit() {
    const std::filesystem::path directory = cluster_.directory() + "/c";
    while (!cluster_.Job(kJob).has_checkpoint()) {
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        if (absl::StrContains(entry.path().filename().string(), "+")) return;
      }
      if (testing::HasEnded(cluster_.Job(kJob))) return;
    }
  }

  // Hurts the worker, and heals what does not heal by itself. A slow link to the coordinator stays
  // slow.
  void Hurt(const std::string& worker, Fault fault, Phase phase) {
    ControlLink& link = *links_.at(worker);
    DataLink& data_link = *data_links_.at(worker);
    if (fault == Fault::kKill) cluster_.Kill(cluster_.worker(worker));
    if (fault == Fault::kStop) cluster_.worker(worker).Signal(SIGSTOP);
    if (fault == Fault::kDrop) link.Shape({.up = false});
    if (fault == Fault::kReset) link.Reset();
    if (fault == Fault::kSlow) link.Shape(kSlowShape);
    if (fault == Fault::kDataDrop) data_link.Shape({.up = false});
    if (fault == Fault::kDataReset) data_link.Reset();
    if (fault == Fault::kDataSlow) data_link.Shape(kSlowShape);
    if (phase == Phase::kSubmit) cluster_.Submit(job_.Yaml());
    if (fault == Fault::kKill) cluster_.StartWorker(worker, link.address());
    if (fault == Fault::kKill || fault == Fault::kReset || fault == Fault::kSlow) return;
    if (fault == Fault::kDataReset) return;
    absl::SleepFor(kOutage);
    if (fault == Fault::kStop) cluster_.worker(worker).Signal(SIGCONT);
    if (fault == Fault::kDrop) link.Heal();
    if (IsOfDataLink(fault)) data_link.Heal();
  }

  // Waits for the end of the job, as long as it makes steps.
  v1::Job AwaitEndWithProgress() {
    v1::Job job = cluster_.Job(kJob);
    absl::Duration last_progress = SteadyNow();
    for (std::int64_t step = job.last_step().step(); !testing::HasEnded(job);
         job = cluster_.Job(kJob)) {
      if (job.state() == v1::JOB_STATE_PAUSED) cluster_.Resume(kJob);
      if (job.last_step().step() != step) {
        step = job.last_step().step();
        last_progress = SteadyNow();
      }
      if (SteadyNow() - last_progress > kNoProgress) {
        ADD_FAILURE() << "no step after " << step << " for " << kNoProgress << ": "
                      << v1::JobState_Name(job.state()) << ", " << job.reason();
        cluster_.Cancel(kJob);
        return cluster_.AwaitEnd(kJob);
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return job;
  }

  const SmallJob job_ = JobFor(GetParam());
  const DataLinks data_links_ = MakeDataLinks();
  Cluster cluster_{0, PlacesAt(data_links_)};
  std::map<std::string, std::unique_ptr<ControlLink>> links_;
  std::string drained_;
};

TEST_P(Matrix, TheJobEndsAsIfNothingHadHappened) {
  const auto [fault, phase] = GetParam();
  const std::vector<double>& undisturbed = Undisturbed(job_);
  Approach(phase);
  Hurt(phase == Phase::kSubmit ? "w1" : Victim(fault), fault, phase);
  if (!drained_.empty()) cluster_.Undrain(drained_);
  const v1::Job job = AwaitEndWithProgress();
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  EXPECT_EQ(job.checkpoint().step(), kSteps);
  EXPECT_EQ(testing::LossesOf(cluster_, kJob), undisturbed);
  cluster_.AwaitIdle({"w0", "w1", "w2"});
  cluster_.ExpectNothingLost();
}

const auto kName = [](const auto& info) { return Print(info.param); };

INSTANTIATE_TEST_SUITE_P(
    Diagonal, Matrix,
    ::testing::Values(Cell{Fault::kKill, Phase::kStep}, Cell{Fault::kStop, Phase::kSave},
                      Cell{Fault::kDrop, Phase::kPrepare}, Cell{Fault::kReset, Phase::kCommit},
                      Cell{Fault::kSlow, Phase::kPause}, Cell{Fault::kDataReset, Phase::kReduce}),
    kName);

// `tests/long.sh matrix` runs it.
INSTANTIATE_TEST_SUITE_P(
    DISABLED_Whole, Matrix,
    ::testing::Combine(
        ::testing::Values(Fault::kKill, Fault::kStop, Fault::kDrop, Fault::kReset, Fault::kSlow),
        ::testing::Values(Phase::kSubmit, Phase::kPlan, Phase::kPrepare, Phase::kConnect,
                          Phase::kLoad, Phase::kStep, Phase::kReduce, Phase::kSave, Phase::kCommit,
                          Phase::kPause, Phase::kDrain, Phase::kResume)),
    kName);
INSTANTIATE_TEST_SUITE_P(DISABLED_WholeOfDataLinks, Matrix,
                         ::testing::Combine(::testing::Values(Fault::kDataDrop, Fault::kDataReset,
                                                              Fault::kDataSlow),
                                            ::testing::Values(Phase::kStep, Phase::kReduce)),
                         kName);

}  // namespace
}  // namespace takt
