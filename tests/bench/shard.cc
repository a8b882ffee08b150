// SPDX-License-Identifier: Apache-2.0
// Measures what `parallelism.shard: optimizer` saves and costs: the optimizer's memory of each of
// four replicas, and the time of a step on emulated layers, with it and without, in turns.
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "tests/testing/cluster.h"

namespace takt::bench::shard_command {
namespace {

using config::Shard;
using testing::Cluster;

constexpr int kReplicas = 4;
constexpr double kShare = 1.0 / kReplicas, kShareLimit = 0.03, kStepLimit = 1.02;
constexpr std::int64_t kSkippedSteps = 3;
constexpr absl::Duration kPatience = absl::Minutes(10);

struct Options : CommonOptions {
  int turns = 6, steps = 20;
  double parameter_mib = 16;  // of a layer
};

// Returns a job of four replicas of one stage, whose layers take time and have parameters.
config::JobSpec Job(const std::string& name, Shard shard, std::int64_t steps,
                    const Options& options) {
  config::JobSpec job;
  job.name = name;
  job.model = {.family = model::Family::kEmulated,
               .layers = 4,
               .forward_seconds = 4e-3,
               .input_grad_seconds = 4e-3,
               .weight_grad_seconds = 4e-3,
               .activation_bytes = 4096,
               .parameter_bytes = static_cast<std::int64_t>(options.parameter_mib * 256) << 12};
  job.global_batch = 4 * kReplicas;
  job.microbatch = 1;
  job.steps = steps;
  job.parallelism = {.pipeline = 1, .data = kReplicas, .threads = 1, .schedule = "1f1b"};
  job.parallelism.shard = shard;
  return job;
}

absl::Status RunToEnd(Cluster& cluster, const config::JobSpec& job) {
  cluster.Submit(config::ToProto(job));
  const v1::Job ended = cluster.AwaitEnd(job.name, kPatience);
  if (ended.state() == v1::JOB_STATE_SUCCEEDED) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("job ", job.name, ": ", ended.reason()));
}

// Returns the mean peak of fresh workers, each of which has a rank, as a peak never falls.
absl::StatusOr<double> PeakBytes(const config::JobSpec& job) {
  Cluster cluster(kReplicas);
  RETURN_IF_ERROR(RunToEnd(cluster, job));
  double sum = 0;
  for (int worker = 0; worker < kReplicas; ++worker) {
    ASSIGN_OR_RETURN(const std::int64_t bytes,
                     PeakRssBytes(cluster.worker(absl::StrCat("w", worker)).pid()));
    sum += static_cast<double>(bytes);
  }
  return sum / kReplicas;
}

absl::StatusOr<double> PredictedBytes(const config::JobSpec& job) {
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = kReplicas}));
  return static_cast<double>(plan.memory.front()[MemoryKind::kOptimizer]);
}

// Bytes of the optimizer's state on a rank.
struct Bytes {
  double none = 0, optimizer = 0;
  double ratio() const { return optimizer / none; }
  bool holds() const { return std::abs(ratio() / kShare - 1) <= kShareLimit; }
};

absl::StatusOr<Bytes> Predicted(const Options& options) {
  Bytes bytes;
  ASSIGN_OR_RETURN(bytes.none, PredictedBytes(Job("none", Shard::kNone, 1, options)));
  ASSIGN_OR_RETURN(bytes.optimizer, PredictedBytes(Job("shard", Shard::kOptimizer, 1, options)));
  return bytes;
}

// SGD without momentum has no state, so its peak is what all others need beside theirs.
absl::StatusOr<Bytes> Measured(const Options& options) {
  constexpr std::int64_t kSteps = 3;
  const auto peak = [&](const char* name, Shard shard, bool stateless) {
    config::JobSpec job = Job(name, shard, kSteps, options);
    if (stateless) job.sgd = config::Sgd{.learning_rate = 0.1, .momentum = 0};
    return PeakBytes(job);
  };
  ASSIGN_OR_RETURN(const double beside, peak("beside", Shard::kNone, true));
  ASSIGN_OR_RETURN(const double beside_shards, peak("beside-shards", Shard::kOptimizer, true));
  Bytes bytes;
  ASSIGN_OR_RETURN(bytes.none, peak("none", Shard::kNone, false));
  ASSIGN_OR_RETURN(bytes.optimizer, peak("shard", Shard::kOptimizer, false));
  bytes.none -= beside;
  bytes.optimizer -= beside_shards;
  return bytes;
}

absl::StatusOr<double> MedianStepSeconds(Cluster& cluster, const config::JobSpec& job) {
  RETURN_IF_ERROR(RunToEnd(cluster, job));
  std::vector<double> seconds;
  for (const v1::StepReport& step : cluster.Steps(job.name)) {
    if (step.step() > kSkippedSteps) seconds.push_back(step.step_seconds());
  }
  if (seconds.empty()) return absl::InternalError(absl::StrCat(job.name, " reported no step"));
  return Median(std::move(seconds));
}

struct StepTimes {
  double none = 0, ratio = 0, spread = 0;
};

absl::StatusOr<StepTimes> MeasureSteps(const Options& options) {
  Cluster cluster(kReplicas);
  std::vector<double> ratios, without;
  int jobs = 0;
  for (int turn = 0; turn < options.turns; ++turn) {
    double none = 0, shard = 0;
    for (const bool shares : {turn % 2 == 0, turn % 2 != 0}) {
      const config::JobSpec job =
          Job(absl::StrCat("job-", jobs++), shares ? Shard::kOptimizer : Shard::kNone,
              kSkippedSteps + options.steps, options);
      ASSIGN_OR_RETURN((shares ? shard : none), MedianStepSeconds(cluster, job));
    }
    ratios.push_back(shard / none);
    without.push_back(none);
  }
  return StepTimes{.none = Median(without), .ratio = Median(ratios), .spread = Spread(ratios)};
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{.heading = "of a rank", .key = "what", .width = 24},
                               {.heading = "none", .key = "none", .precision = 1},
                               {.heading = "ratio", .key = "ratio", .width = 7, .precision = 4},
                               {.heading = "limit", .key = "limit", .width = 7, .precision = 4}});
  const auto add_bytes = [&](const char* what, const Bytes& bytes) {
    table.Add({{"what", what},
               {"none", bytes.none / (1 << 20)},
               {"ratio", bytes.ratio()},
               {"limit", kShare * (1 + kShareLimit)},
               {"holds", bytes.holds()}},
              bytes.holds() ? "" : "not a quarter");
    return bytes.holds();
  };
  ASSIGN_OR_RETURN(const Bytes predicted, Predicted(options));
  bool holds = add_bytes("optimizer MiB, predicted", predicted);
  ASSIGN_OR_RETURN(const Bytes measured, Measured(options));
  holds &= add_bytes("optimizer MiB, measured", measured);
  ASSIGN_OR_RETURN(const StepTimes step, MeasureSteps(options));
  const bool step_holds = step.ratio <= kStepLimit;
  table.Add({{"what", "step ms"},
             {"none", 1e3 * step.none},
             {"ratio", step.ratio},
             {"spread", step.spread},
             {"limit", kStepLimit},
             {"holds", step_holds}},
            step_holds ? "" : "above its limit");
  table.End({{"replicas", kReplicas}, {"turns", options.turns}, {"holds", holds && step_holds}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "shard",
      "What shared optimizer state saves and costs four replicas on real daemons",
      [](CLI::App& command, Options& options) {
        command.add_option("--turns", options.turns, "Pairs of runs, with and without")
            ->check(CLI::Range(2, 1000));
        command.add_option("--steps", options.steps, "Steps of each run that count")
            ->check(CLI::Range(3, 100'000));
        command.add_option("--parameter-mib", options.parameter_mib, "MiB of weights of a layer")
            ->check(CLI::Range(0.1, 4096.0));
      },
      Run);
}

}  // namespace takt::bench::shard_command
