// SPDX-License-Identifier: Apache-2.0
// Measures on real daemons of this machine how long jobs take to recover from workers that are
// killed, for how long elastic ones stand still when they grow, and whether a coordinator that
// hangs or a slow link hurts any.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "tests/testing/cluster.h"
#include "tests/testing/link.h"

namespace takt::bench::recovery_command {
namespace {

using testing::Cluster;
using testing::ControlLink;

// Two ranks, and two spares.
constexpr int kWorkers = 4;
constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr std::int64_t kEndless = 100'000'000;  // steps

// The limits of docs/reliability.md.
constexpr double kMostSeen = 1, kMostFree = 2, kMostMedian = 3, kMostP99 = 10;  // seconds
constexpr double kMostStepsLost = 1;
// The jobs save a checkpoint after so many steps. At a crash the newest one may not be visible yet.
constexpr int kCheckpointEvery = 20;
constexpr double kMostStepsSinceCheckpoint = 2 * kCheckpointEvery - 1;

struct Options : CommonOptions {
  int kills = 200, changes = 10;
  double cut_seconds = 60, slow_seconds = 600;
  unsigned seed = 1;
};

struct Kind {
  std::string name;
  std::int64_t steps = 0;  // of a job that is killed
};

std::string Yaml(const Kind& kind, const std::string& job, std::int64_t steps) {
  const std::string checkpoint = absl::StrCat(
      "checkpoint: {directory: ", job, ", every_steps: ", kCheckpointEvery, ", in_memory: 1}\n");
  if (kind.name == "emulated")
    return testing::EmulatedJob{.name = job, .pipeline = 2, .steps = steps}.Yaml() + checkpoint;
  return absl::StrCat(
      "name: ", job,
      "\nmodel: {family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 8, microbatch: 2}\nsteps: ",
      steps, "\nseed: 7\nparallelism: {threads: 1, pipeline: 2, schedule: 1f1b}\n", checkpoint);
}

// Says what one kill did to its job.
struct Kill {
  // Seconds after the signal: the worker is away or lost; no rank of that generation is held any
  // more; a new step is committed.
  double seen = -1, free = -1, next_step = -1;
  double steps_lost = 0;
};

struct Kills {
  std::vector<Kill> kills;
  int jobs = 0, jobs_that_differ = 0;
};

// The rows that are printed, each with its limit.
class Findings {
 public:
  explicit Findings(bool json)
      : table_(json, {{.heading = "part", .key = "part", .width = 16},
                      {.heading = "figure", .key = "figure", .width = 34},
                      {.heading = "measured", .key = "measured", .precision = 3},
                      {.heading = "limit", .key = "limit", .precision = 3}}) {}

  // limit: nullopt where nothing is promised.
  void Add(const std::string& part, const std::string& figure, double measured,
           std::optional<double> limit) {
    const bool holds = !limit.has_value() || measured <= *limit;
    nlohmann::json row = {{"part", part},     {"figure", figure}, {"measured", measured},
                          {"limit", nullptr}, {"ratio", nullptr}, {"holds", nullptr}};
    if (limit.has_value()) {
      row["holds"] = holds;
      row["limit"] = *limit;
      row["ratio"] = *limit > 0 ? measured / *limit : measured;
    }
    table_.Add(row, holds ? "" : "above its limit");
  }
  void End(nlohmann::json object) { table_.End(std::move(object)); }

 private:
  Table table_;
};

bool IsGone(Cluster& cluster, const std::string& worker) {
  const v1::WorkerState state = cluster.Workers()[worker].state();
  return state == v1::WORKER_STATE_AWAY || state == v1::WORKER_STATE_LOST;
}

// Kills the worker and looks at the job until it makes a new step. Returns nullopt if the job had
// ended before it noticed.
absl::StatusOr<std::optional<Kill>> KillOne(Cluster& cluster, const v1::Job& before,
                                            const std::string& worker) {
  Kill kill;
  std::int64_t newest = before.last_step().step();
  const absl::Duration start = SteadyNow();
  cluster.Kill(cluster.worker(worker));
  while (SteadyNow() - start < kPatience) {
    const v1::Job job = cluster.Job(before.name());
    const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
    const bool anew = job.generation() != before.generation();
    if (!anew) newest = std::max(newest, job.last_step().step());
    if (kill.seen < 0 && (anew || IsGone(cluster, worker))) kill.seen = seconds;
    if (kill.free < 0 && (anew || job.ranks_size() == 0)) kill.free = seconds;
    if (job.state() == v1::JOB_STATE_SUCCEEDED) return std::nullopt;
    if (testing::HasEnded(job))
      return absl::InternalError(absl::StrCat("job ", job.name(), ": ", job.reason()));
    if (anew && job.last_step().step() > newest) {
      kill.next_step = seconds;
      kill.steps_lost =
          static_cast<double>(newest - std::max(job.resumed_step(), job.memory_step()));
      return kill;
    }
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("job ", before.name(), " made no step after worker ", worker, " was killed"));
}

std::vector<double> LossesOf(Cluster& cluster, const std::string& job) {
  std::vector<double> losses;
  for (const v1::StepReport& step : cluster.Steps(job)) losses.push_back(step.loss());
  return losses;
}

absl::Status AwaitSuccess(Cluster& cluster, const std::string& name) {
  const v1::Job job = cluster.AwaitEnd(name, absl::Minutes(10));
  if (job.state() == v1::JOB_STATE_SUCCEEDED) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("job ", name, ": ", job.reason()));
}

// Kills random ranks of one job at random moments, until it ends or `most` were killed.
absl::Status KillRanksOf(Cluster& cluster, const std::string& name, std::size_t most,
                         std::mt19937& random, Kills& kills) {
  cluster.AwaitStep(name, 5);
  while (kills.kills.size() < most) {
    absl::SleepFor(absl::Milliseconds(std::uniform_int_distribution<int>(20, 400)(random)));
    const v1::Job job = cluster.Job(name);
    if (testing::HasEnded(job)) return absl::OkStatus();
    if (job.state() != v1::JOB_STATE_RUNNING || job.ranks_size() == 0) continue;
    std::uniform_int_distribution<int> any(0, job.ranks_size() - 1);
    const std::string worker = job.ranks(any(random)).worker();
    ASSIGN_OR_RETURN(const std::optional<Kill> kill, KillOne(cluster, job, worker));
    if (kill.has_value()) kills.kills.push_back(*kill);
    cluster.StartWorker(worker);
  }
  return absl::OkStatus();
}

absl::StatusOr<Kills> MeasureKills(const Kind& kind, std::size_t count, std::mt19937& random) {
  Kills kills;
  Cluster cluster(kWorkers);
  cluster.Submit(Yaml(kind, "undisturbed", kind.steps));
  RETURN_IF_ERROR(AwaitSuccess(cluster, "undisturbed"));
  const std::vector<double> undisturbed = LossesOf(cluster, "undisturbed");
  while (kills.kills.size() < count) {
    const std::string name = absl::StrCat(kind.name, "-", kills.jobs++);
    cluster.Submit(Yaml(kind, name, kind.steps));
    RETURN_IF_ERROR(KillRanksOf(cluster, name, count, random, kills));
    RETURN_IF_ERROR(AwaitSuccess(cluster, name));
    if (LossesOf(cluster, name) != undisturbed) ++kills.jobs_that_differ;
  }
  return kills;
}

double Quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const double at = std::ceil(q * static_cast<double>(values.size())) - 1;
  return values[static_cast<std::size_t>(std::max(at, 0.0))];
}

std::vector<double> Each(const Kills& kills, double Kill::*member) {
  std::vector<double> values;
  for (const Kill& kill : kills.kills) values.push_back(kill.*member);
  return values;
}

void AddKills(const Kind& kind, const Kills& kills, Findings& table) {
  const std::string part = absl::StrCat("kill, ", kind.name);
  const std::vector<double> next = Each(kills, &Kill::next_step);
  const std::vector<double> lost = Each(kills, &Kill::steps_lost);
  table.Add(part, "crash seen, p99, s", Quantile(Each(kills, &Kill::seen), 0.99), kMostSeen);
  table.Add(part, "peers free, p99, s", Quantile(Each(kills, &Kill::free), 0.99), kMostFree);
  table.Add(part, "next new step, median, s", Median(next), kMostMedian);
  table.Add(part, "next new step, p99, s", Quantile(next, 0.99), kMostP99);
  // An emulated model has no state in memory, and resumes from its checkpoint.
  const bool in_memory = kind.name != "emulated";
  table.Add(part, "steps lost, most", *std::ranges::max_element(lost),
            in_memory ? kMostStepsLost : kMostStepsSinceCheckpoint);
  table.Add(part, absl::StrCat("of ", kills.jobs, " jobs, losses differ"), kills.jobs_that_differ,
            0);
}

// Two replicas with the bits that one alone has, too. One alone keeps no copies, and saves when it
// grows. The model is so large that a second replica pays.
std::string ElasticYaml(const std::string& job, std::int64_t steps) {
  return absl::StrCat(
      "name: ", job,
      "\nmodel: {family: gpt2, layers: 4, hidden: 128, heads: 4, context: 64, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 8, microbatch: 1}\nsteps: ",
      steps,
      "\nseed: 7\nparallelism: {threads: 1, pipeline: 1, data: 2, data_leaves: 2, schedule: 1f1b}"
      "\nelastic: {data: {min: 1, max: 2}}\ncheckpoint: {directory: ",
      job, ", every_steps: 20, in_memory: 1}\n");
}

// Starts a worker, and returns for how many seconds the job stands still when it takes it.
absl::StatusOr<double> GrowBy(Cluster& cluster, const v1::Job& before, const std::string& worker) {
  const absl::Duration start = SteadyNow();
  absl::Duration newest_at = start;
  std::int64_t newest = before.last_step().step();
  cluster.StartWorker(worker);
  while (SteadyNow() - start < kPatience) {
    const v1::Job job = cluster.Job(before.name());
    if (testing::HasEnded(job))
      return absl::InternalError(absl::StrCat("job ", job.name(), ": ", job.reason()));
    const std::int64_t step = job.last_step().step();
    if (job.generation() == before.generation()) {
      if (step > newest) newest_at = SteadyNow();
      newest = std::max(newest, step);
    } else if (step > newest) {
      return absl::ToDoubleSeconds(SteadyNow() - newest_at);
    }
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("job ", before.name(), " did not take worker ", worker));
}

// Kills one of two workers, again and again, and starts another one when the job trains on the
// other one alone. A job does not grow by a worker that it has lost twice.
absl::Status MeasureElastic(const Options& options, std::mt19937& random, Findings& table) {
  Cluster cluster(2);
  cluster.Submit(ElasticYaml("elastic", kEndless));
  std::vector<double> next_steps, lost, pauses;
  for (int i = 0; i < options.changes; ++i) {
    const std::int64_t now = cluster.Job("elastic").last_step().step();
    const v1::Job whole = cluster.AwaitStep("elastic", now + 20);
    if (whole.ranks_size() != 2) return absl::InternalError("the job did not grow");
    const std::string worker = whole.ranks(static_cast<int>(random() % 2)).worker();
    ASSIGN_OR_RETURN(const std::optional<Kill> kill, KillOne(cluster, whole, worker));
    next_steps.push_back(kill->next_step);
    lost.push_back(kill->steps_lost);
    ASSIGN_OR_RETURN(pauses.emplace_back(),
                     GrowBy(cluster, cluster.Job("elastic"), absl::StrCat("n", i)));
  }
  cluster.Cancel("elastic");
  cluster.AwaitEnd("elastic");
  const std::vector<double> losses = LossesOf(cluster, "elastic");
  cluster.Submit(ElasticYaml("undisturbed", static_cast<std::int64_t>(losses.size())));
  RETURN_IF_ERROR(AwaitSuccess(cluster, "undisturbed"));
  const std::string part = "elastic";
  table.Add(part, "next new step alone, median, s", Median(next_steps), kMostMedian);
  table.Add(part, "next new step alone, p99, s", Quantile(next_steps, 0.99), kMostP99);
  table.Add(part, "steps lost, most", *std::ranges::max_element(lost), kMostStepsLost);
  table.Add(part, "pause to grow, median, s", Median(pauses), std::nullopt);
  table.Add(part, "pause to grow, longest, s", Quantile(pauses, 1), std::nullopt);
  table.Add(part, "of 1 job, losses differ", LossesOf(cluster, "undisturbed") == losses ? 0 : 1, 0);
  return absl::OkStatus();
}

// A job that runs on through what is done to the cluster.
class EndlessJob {
 public:
  explicit EndlessJob(Cluster& cluster) : cluster_(cluster) {
    cluster_.Submit(
        testing::EmulatedJob{.name = "endless", .pipeline = 2, .steps = kEndless}.Yaml());
    before_ = cluster_.AwaitStep("endless", 3);
  }
  ~EndlessJob() { cluster_.Cancel("endless"); }

  // Returns whether it still runs in the generation that it began with.
  bool IsUnhurt() {
    const v1::Job job = cluster_.Job("endless");
    return job.state() == v1::JOB_STATE_RUNNING && job.generation() == before_.generation();
  }
  // Waits for three more steps. Returns false if they do not come.
  bool MakesSteps() {
    const std::int64_t now = cluster_.Job("endless").last_step().step();
    return cluster_.AwaitStep("endless", now + 3).last_step().step() >= now + 3;
  }

 private:
  Cluster& cluster_;
  v1::Job before_;
};

// A cluster of two workers, each behind a link to the coordinator.
class LinkedCluster {
 public:
  LinkedCluster() {
    cluster_.StartWorker("w0", links_[0].address());
    cluster_.StartWorker("w1", links_[1].address());
    cluster_.AwaitIdle({"w0", "w1"});
  }
  Cluster& operator*() { return cluster_; }
  void Shape(const testing::LinkShape& shape) {
    for (ControlLink& link : links_) link.Shape(shape);
  }
  void Heal() {
    for (ControlLink& link : links_) link.Heal();
  }

 private:
  std::string Path(const char* name) const { return cluster_.directory() + name; }

  Cluster cluster_{0};
  ControlLink links_[2] = {{Path("/first"), Path("/socket")}, {Path("/second"), Path("/socket")}};
};

void MeasureStop(const Options& options, Findings& table) {
  Cluster cluster(2);
  EndlessJob job(cluster);
  cluster.coordinator().Signal(SIGSTOP);
  absl::SleepFor(absl::Seconds(options.cut_seconds));
  cluster.coordinator().Signal(SIGCONT);
  const bool unhurt = job.MakesSteps() && job.IsUnhurt();
  table.Add("coordinator stopped", absl::StrCat("jobs hurt in ", options.cut_seconds, " s"),
            unhurt ? 0 : 1, 0);
}

// Nothing reaches the coordinator and nothing comes from it, while it keeps running.
void MeasureCut(const Options& options, Findings& table) {
  LinkedCluster cluster;
  EndlessJob job(*cluster);
  cluster.Shape({.up = false, .down = false});
  absl::SleepFor(absl::Seconds(options.cut_seconds));
  cluster.Heal();
  const bool unhurt = job.MakesSteps() && job.IsUnhurt();
  table.Add("coordinator cut off", absl::StrCat("jobs hurt in ", options.cut_seconds, " s"),
            unhurt ? 0 : 1, 0);
}

void MeasureSlowLink(const Options& options, Findings& table) {
  constexpr absl::Duration kLook = absl::Milliseconds(500);
  LinkedCluster cluster;
  EndlessJob job(*cluster);
  cluster.Shape({.delay = absl::Milliseconds(150), .bytes_per_second = 32e3});
  int evictions = 0, looks_away = 0;
  const absl::Duration end = SteadyNow() + absl::Seconds(options.slow_seconds);
  while (SteadyNow() < end && evictions == 0) {
    absl::SleepFor(kLook);
    if (!job.IsUnhurt()) ++evictions;
    for (const auto& [name, worker] : (*cluster).Workers())
      looks_away += worker.state() == v1::WORKER_STATE_AWAY ? 1 : 0;
  }
  if (evictions == 0 && !job.MakesSteps()) ++evictions;
  const std::string part = "256 kbit/s, 300 ms";
  table.Add(part, absl::StrCat("evictions in ", options.slow_seconds, " s"), evictions, 0);
  table.Add(part, "workers away, seconds", looks_away * absl::ToDoubleSeconds(kLook), 0);
  cluster.Heal();
}

absl::Status Run(const Options& options) {
  Findings table(options.json());
  std::mt19937 random(options.seed);
  const std::vector<Kind> kinds = {{"emulated", 600}, {"real", 2000}};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const std::size_t count = (static_cast<std::size_t>(options.kills) + i) / 2;
    if (count == 0) continue;
    ASSIGN_OR_RETURN(const Kills kills, MeasureKills(kinds[i], count, random));
    AddKills(kinds[i], kills, table);
  }
  if (options.changes > 0) RETURN_IF_ERROR(MeasureElastic(options, random, table));
  if (options.cut_seconds > 0) {
    MeasureStop(options, table);
    MeasureCut(options, table);
  }
  if (options.slow_seconds > 0) MeasureSlowLink(options, table);
  table.End({{"kills", options.kills}, {"changes", options.changes}, {"seed", options.seed}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "recovery",
      "Jobs on real daemons whose workers are killed, that shrink and grow, whose coordinator "
      "hangs "
      "or is cut off, or whose link is slow",
      [](CLI::App& command, Options& options) {
        command
            .add_option("--kills", options.kills,
                        "Workers to kill, half of them of an emulated job; 0: leave that out")
            ->check(CLI::Range(0, 100'000));
        command
            .add_option("--changes", options.changes,
                        "Workers that an elastic job loses, and that come back; 0: leave that out")
            ->check(CLI::Range(0, 10'000));
        command
            .add_option(
                "--cut", options.cut_seconds,
                "Seconds for which the coordinator is stopped, and then cut off; 0: leave both out")
            ->check(CLI::Range(0.0, 86'400.0));
        command
            .add_option("--slow-seconds", options.slow_seconds,
                        "Seconds for which the links are slow; 0: leave that out")
            ->check(CLI::Range(0.0, 86'400.0));
        command.add_option("--seed", options.seed, "Of the moments and the victims");
      },
      Run);
}

}  // namespace takt::bench::recovery_command
