// SPDX-License-Identifier: Apache-2.0
// Something known is done to real daemons, and the split of their steps says what it was.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/explain/advice.h"
#include "common/explain/explain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/observability/delayed_link.h"
#include "tests/testing/cluster.h"

namespace takt::observability {
namespace {

using explain::Explanation;
using explain::Part;
using explain::Parts;
using testing::Cluster;

constexpr int kSteps = 10;
// The first steps are unlike the others: nothing is ahead of them.
constexpr int kSkippedSteps = 2;
constexpr int kMicrobatches = 8;
// Of a stage's forward, of each of its two gradients.
constexpr double kOpSeconds = 0.008;
constexpr int kLayers = 10;

double Of(const Parts& parts, Part part) { return parts[static_cast<int>(part)]; }

// An emulated job whose stages have so many layers; 10 take kOpSeconds forward.
std::string Job(const std::string& name, const std::vector<int>& stage_layers,
                const std::string& parallelism = "", int steps = kSteps) {
  const int layers = std::accumulate(stage_layers.begin(), stage_layers.end(), 0);
  const double layer_ms = 1e3 * kOpSeconds / kLayers;
  return absl::StrCat(
      "name: ", name, "\nmodel: {family: emulated, layers: ", layers, ", forward_ms: ", layer_ms,
      ", input_grad_ms: ", layer_ms, ", weight_grad_ms: ", layer_ms,
      ", activation_bytes: 4096}\nbatch: {global: ", kMicrobatches,
      ", microbatch: 1}\nsteps: ", steps, "\nparallelism: {pipeline: ", stage_layers.size(),
      ", data: 1, schedule: 1f1b, stage_layers: [", absl::StrJoin(stage_layers, ", "), "]",
      parallelism, "}\n");
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<Explanation> ExplainAll(const trace::Timeline& timeline) {
  std::vector<Explanation> all;
  for (const trace::StepWindow& window : timeline.steps) {
    if (window.step <= StepId(kSkippedSteps)) continue;
    all.push_back(explain::Explain(timeline, window.step).value());
  }
  return all;
}

// The parts add up to each step, and all steps together to what the step log says of them.
void ExpectToAddUp(Cluster& cluster, const std::string& job, const std::vector<Explanation>& all) {
  double explained = 0, logged = 0;
  for (const Explanation& each : all) {
    const double sum = std::accumulate(each.parts.begin(), each.parts.end(), 0.0);
    EXPECT_NEAR(sum, each.step_seconds, 1e-6 * each.step_seconds);
    explained += sum;
  }
  for (const v1::StepReport& step : cluster.Steps(job)) {
    const bool is_explained = std::any_of(all.begin(), all.end(), [&](const Explanation& each) {
      return each.step == StepId(step.step());
    });
    if (is_explained) logged += step.step_seconds();
  }
  // The log has rank 0's steps, whose ends are not those of the last rank: on a busy machine by
  // some time slices.
  constexpr double kEnds = 0.030;
  EXPECT_NEAR(explained, logged, 1e-3 * logged + kEnds);
}

// Of the usual step.
struct Split {
  double step = 0;
  Parts parts{};
};

Split Usual(const std::vector<Explanation>& all) {
  Split usual;
  const auto median_of = [&](const auto& value) {
    std::vector<double> values;
    for (const Explanation& each : all) values.push_back(value(each));
    return Median(std::move(values));
  };
  usual.step = median_of([](const Explanation& each) { return each.step_seconds; });
  for (int part = 0; part < explain::kNumParts; ++part) {
    usual.parts[part] = median_of([&](const Explanation& each) { return each.parts[part]; });
  }
  return usual;
}

Split RunAndSplit(Cluster& cluster, const std::string& name, const std::string& yaml) {
  cluster.Submit(yaml);
  EXPECT_EQ(cluster.AwaitEnd(name).state(), v1::JOB_STATE_SUCCEEDED);
  const trace::JobTrace trace = cluster.Trace(name, kSteps);
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  const std::vector<Explanation> all = ExplainAll(timeline);
  EXPECT_GE(all.size(), 3u) << "of the newest " << kSteps << " steps";
  ExpectToAddUp(cluster, name, all);
  const Split usual = Usual(all);
  std::printf("%-12s step %6.1f ms:", name.c_str(), 1e3 * usual.step);
  for (int part = 0; part < explain::kNumParts; ++part) {
    std::printf(" %s %.1f", std::string(Name(Part(part))).c_str(), 1e3 * usual.parts[part]);
  }
  std::printf("\n");
  return usual;
}

// Of what a step can lose by what is planted, `part` grew most, and by so many seconds, give or
// take three tenths: runtime is what a step loses by other load on the machine, too.
void ExpectGrowth(const Split& calm, const Split& planted, Part part, double seconds) {
  const auto growth = [&](Part of) { return Of(planted.parts, of) - Of(calm.parts, of); };
  EXPECT_NEAR(growth(part), seconds, 0.3 * seconds) << Name(part);
  for (const Part other : {Part::kImbalance, Part::kCommunication, Part::kData, Part::kSync}) {
    if (other == part) continue;
    EXPECT_LT(growth(other), growth(part)) << Name(other);
  }
}

// Of an undisturbed emulated job: others have the cores for so much of a step that each of its
// parts is chance.
bool IsTooBusy(const Split& calm) { return Of(calm.parts, Part::kRuntime) > 0.2 * calm.step; }
constexpr char kTooBusy[] = "other programs have the cores of this machine: see the line above";

TEST(PlantedCause, StageThatIsSlowerBy30PercentIsImbalance) {
  Cluster cluster(4);
  const Split calm = RunAndSplit(cluster, "calm", Job("calm", {10, 10, 10, 10}));
  if (IsTooBusy(calm)) GTEST_SKIP() << kTooBusy;
  const Split slow = RunAndSplit(cluster, "slow-stage", Job("slow-stage", {10, 10, 13, 10}));
  // A step is the slowest stage's microbatches and once the way to it and back; balanced stages
  // would take the mean of all for each. In units of one forward and backward of a stage:
  const double unit = 3 * kOpSeconds, mean = 1.075;
  const double as_is = 1.3 * kMicrobatches + 3, balanced = mean * (kMicrobatches + 3);
  ExpectGrowth(calm, slow, Part::kImbalance, unit * (as_is - balanced));

  const trace::JobTrace trace = cluster.Trace("slow-stage", kSteps);
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  const StepId last = timeline.steps.back().step;
  const Explanation explanation = explain::Explain(timeline, last).value();
  ASSERT_TRUE(explanation.worst_op.has_value());
  EXPECT_EQ(explanation.worst_op->stage, StageId(2));
  const std::vector<explain::Advice> advice = explain::Advise(timeline, last).value();
  EXPECT_TRUE(std::any_of(advice.begin(), advice.end(), [](const explain::Advice& each) {
    return each.kind == explain::Advice::Kind::kMoveLayer;
  }));
}

TEST(PlantedCause, LinkThatTakes20MillisecondsMoreIsCommunication) {
  constexpr double kDelay = 0.020;
  const auto link = DelayedLink::Create(absl::Seconds(kDelay));
  if (!link.ok()) GTEST_SKIP() << "no delayed link on this machine: " << link.status();
  // The wire is between ranks 0 and 1. The ranks of the calm job are neighbours.
  const auto at = [&](int side) {
    return testing::WorkerPlace{.wrapper = {TAKT_ELSEWHERE, "--net", (*link)->NetFile(side)},
                                .arguments = {"--data-address", DelayedLink::Address(side)}};
  };
  const std::string transport = ", transport: gloo";
  Split calm;
  {
    Cluster cluster(3, {{"w0", at(1)}, {"w1", at(1)}, {"w2", at(1)}});
    calm = RunAndSplit(cluster, "calm", Job("calm", {10, 10, 10}, transport));
  }
  if (IsTooBusy(calm)) GTEST_SKIP() << kTooBusy;
  Cluster cluster(3, {{"w0", at(0)}, {"w1", at(1)}, {"w2", at(1)}});
  const Split slow = RunAndSplit(cluster, "slow-link", Job("slow-link", {10, 10, 10}, transport));
  // The sums over ranks use the wire too: rank 0 meets two others, each time there and back.
  const double of_sums = Of(slow.parts, Part::kSync) - Of(calm.parts, Part::kSync);
  EXPECT_GE(of_sums, 2 * kDelay);
  EXPECT_LE(of_sums, 9 * kDelay);
  const double grown = slow.step - calm.step;
  EXPECT_GT(grown, 2 * kDelay);
  ExpectGrowth(calm, slow, Part::kCommunication, grown - of_sums);

  const trace::JobTrace trace = cluster.Trace("slow-link", kSteps);
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  const auto explanation = explain::Explain(timeline, timeline.steps.back().step).value();
  ASSERT_TRUE(explanation.worst_link.has_value());
  EXPECT_EQ(std::max(explanation.worst_link->from, explanation.worst_link->to), 1);
}

TEST(PlantedCause, DataFileOnASlowDiskIsData) {
  constexpr double kPageSeconds = 0.050;
  const auto faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
  if (faults < 0) GTEST_SKIP() << "no userfaultfd on this machine";
  close(faults);
  // A step reads a page of the file, and a byte of the next. It computes next to nothing: how long
  // that takes is up to other load. Not every step that is so short is traced, so there are more,
  // but no more than the file has pages (16).
  const auto job = [](const std::string& name) {
    return absl::StrCat("name: ", name,
                        "\nmodel: {family: gpt2, layers: 4, hidden: 8, heads: 1, context: 128, "
                        "vocab: 256}\ndata: {train: {path: data.txt, format: bytes}, "
                        "shuffle: false}\nbatch: {global: 32, microbatch: 4}\nsteps: ",
                        kSteps + kSteps / 2,
                        "\nparallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n");
  };
  Split calm;
  {
    Cluster cluster(2);
    calm = RunAndSplit(cluster, "calm", job("calm"));
  }
  // The file is made by the cluster; its name is known only then.
  const std::string file = ::testing::TempDir() + absl::StrCat("/takt-slow-data-", getpid());
  const testing::WorkerPlace place{
      .wrapper = {"/usr/bin/env", absl::StrCat("LD_PRELOAD=", TAKT_SLOW_FILE),
                  "TAKT_SLOW_FILE=" + file,
                  absl::StrCat("TAKT_SLOW_MILLISECONDS=", std::lround(1e3 * kPageSeconds))}};
  Cluster cluster(2, {{"w0", place}, {"w1", place}});
  ASSERT_EQ(link((cluster.directory() + "/data.txt").c_str(), file.c_str()), 0);
  const Split slow = RunAndSplit(cluster, "slow-disk", job("slow-disk"));
  unlink(file.c_str());
  ExpectGrowth(calm, slow, Part::kData, kPageSeconds);
}

// A rank's process stood still, so the steps that it was in were longer.
struct Stop {
  double lost = 0;  // by these steps, against the usual one
  Parts growth{};   // of these steps' parts, likewise
};

Stop StopOf(const std::vector<Explanation>& all, const trace::Timeline& timeline,
            const trace::Span& stall, const Split& usual) {
  Stop stop;
  for (const Explanation& each : all) {
    const auto window =
        std::find_if(timeline.steps.begin(), timeline.steps.end(),
                     [&](const trace::StepWindow& step) { return step.step == each.step; });
    if (window->end_nanos < stall.start_nanos || window->start_nanos > stall.end_nanos) continue;
    stop.lost += each.step_seconds - usual.step;
    for (int part = 0; part < explain::kNumParts; ++part) {
      stop.growth[part] += each.parts[part] - usual.parts[part];
    }
  }
  return stop;
}

TEST(PlantedCause, WorkerThatStoodStillIsRuntimeWhereverItWasStopped) {
  constexpr absl::Duration kStop = absl::Milliseconds(100);
  constexpr int kStops = 6, kStepsBetween = 3;
  constexpr int kManySteps = kSkippedSteps + (kStops + 1) * kStepsBetween;
  constexpr double kStepSeconds = 3 * kOpSeconds * (kMicrobatches + 3);
  Cluster cluster(4);
  cluster.Submit(Job("stopped", {10, 10, 10, 10}, "", kManySteps));
  for (int i = 0; i < kStops; ++i) {
    cluster.AwaitStep("stopped", kSkippedSteps + 1 + i * kStepsBetween);
    // What is planted: each worker in turn, each time at another place of its step.
    absl::SleepFor(absl::Seconds(kStepSeconds) * i / kStops);
    cli::Process& worker = cluster.worker(absl::StrCat("w", i % 4));
    worker.Signal(SIGSTOP);
    absl::SleepFor(kStop);
    worker.Signal(SIGCONT);
  }
  EXPECT_EQ(cluster.AwaitEnd("stopped").state(), v1::JOB_STATE_SUCCEEDED);

  const trace::JobTrace trace = cluster.Trace("stopped", kManySteps);
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  const std::vector<Explanation> all = ExplainAll(timeline);
  ExpectToAddUp(cluster, "stopped", all);
  const Split usual = Usual(all);
  int found = 0;
  double lost = 0;
  for (const std::vector<trace::Span>& stalls : timeline.stalls) {
    for (const trace::Span& stall : stalls) {
      const double stalled = static_cast<double>(stall.end_nanos - stall.start_nanos) * 1e-9;
      if (stalled < 0.8 * absl::ToDoubleSeconds(kStop)) continue;
      const Stop stop = StopOf(all, timeline, stall, usual);
      std::printf("stopped for %.1f ms, lost %.1f ms: runtime %.1f ms, communication %.1f ms\n",
                  1e3 * stalled, 1e3 * stop.lost, 1e3 * Of(stop.growth, Part::kRuntime),
                  1e3 * Of(stop.growth, Part::kCommunication));
      EXPECT_NEAR(Of(stop.growth, Part::kRuntime), stop.lost, 0.2 * stalled);
      lost += stop.lost;
      ++found;
    }
  }
  EXPECT_GE(found, kStops);  // a busy machine may add some
  // Some of it was idle time anyway.
  EXPECT_GT(lost, 0.5 * kStops * absl::ToDoubleSeconds(kStop));
}

}  // namespace
}  // namespace takt::observability
