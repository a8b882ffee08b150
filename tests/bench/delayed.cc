// SPDX-License-Identifier: Apache-2.0
// Trains a GPT with gradients that are a step late, as pipedream-2bw makes them, beside the same
// without a delay: AdamW and Muon, and both with error feedback. It prints the losses after as many
// tokens, and after as much time on a pipeline.
#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/lone_rank.h"
#include "tests/bench/table.h"
#include "worker/train/trainer.h"

namespace takt::bench::delayed_command {
namespace {

constexpr char kDelayed[] = "pipedream-2bw", kFlushed[] = "1f1b";
// The pipeline whose steps are compared. How a model is cut changes no bit of what is trained, so
// the training itself takes one rank.
constexpr int kRanks = 4, kMicrobatches = 8;
// The job scores so many batches of 4,096 bytes of held-out text.
constexpr int kValidationBatches = 40;
constexpr std::int64_t kCurvePoints = 50;

struct Options : CommonOptions {
  std::string data, model = "example";
  int seeds = 3, threads = 1;
  std::uint64_t first_seed = 1234;
  std::int64_t steps = 1000;
  double learning_rate = 0, feedback = 1;
  std::vector<std::string> only;
};

// One way to train.
struct Way {
  std::string name;
  bool muon = false, delayed = false, feeds_back = false;
  // With a flush: it takes as many steps as end together with those without.
  bool short_run = false;
};

const std::array kWays = {
    Way{.name = "adamw"},
    Way{.name = "adamw-short", .short_run = true},
    Way{.name = "adamw-delayed", .delayed = true},
    Way{.name = "adamw-feedback", .delayed = true, .feeds_back = true},
    Way{.name = "muon", .muon = true},
    Way{.name = "muon-short", .muon = true, .short_run = true},
    Way{.name = "muon-delayed", .muon = true, .delayed = true},
    Way{.name = "muon-feedback", .muon = true, .delayed = true, .feeds_back = true},
};

std::vector<std::string> WayNames() {
  std::vector<std::string> names;
  for (const Way& way : kWays) names.push_back(way.name);
  return names;
}

// Returns the job of deploy/examples/kjv.yaml on one rank, or of a GPT of 10 million parameters.
absl::StatusOr<config::JobSpec> Job(const Options& options) {
  ASSIGN_OR_RETURN(config::JobSpec job, ExampleJob("kjv.yaml", options.threads));
  const bool is_example = options.model == "example";
  if (!is_example) {
    job.model.layers = 8;
    job.model.hidden = 320;
    job.model.inner = 4 * job.model.hidden;
  }
  job.adamw.learning_rate = options.learning_rate > 0 ? options.learning_rate
                            : is_example              ? 2e-3
                                                      : 1e-3;
  job.adamw.clip_norm = 0;  // as it must be where gradients are late
  job.validation->batches = kValidationBatches;
  return job;
}

config::JobSpec JobOf(config::JobSpec job, const Way& way, std::int64_t steps, double feedback) {
  if (way.muon) {
    job.muon = config::Muon{.learning_rate = job.adamw.learning_rate, .clip_norm = 0};
    job.muon->adamw = job.adamw;
  }
  job.parallelism.schedule = way.delayed ? kDelayed : kFlushed;
  job.error_feedback = way.feeds_back ? feedback : 0;
  job.steps = steps;
  job.lr_schedule.warmup_steps = steps / 20;
  job.lr_schedule.decay_steps = steps;
  job.lr_schedule.min_learning_rate = job.adamw.learning_rate / 10;
  job.validation->every_steps = steps;
  return job;
}

// Returns the seconds of a step of a full pipeline of kRanks equal stages whose messages take no
// time, in which a backward takes twice as long as a forward.
absl::StatusOr<double> StepSeconds(const char* schedule) {
  config::JobSpec job;
  job.model = {.family = model::Family::kEmulated,
               .layers = kRanks,
               .context = 1,
               .forward_seconds = 0.1,
               .input_grad_seconds = 0.1,
               .weight_grad_seconds = 0.1,
               .activation_bytes = 1};
  job.global_batch = kMicrobatches;
  job.parallelism = {.pipeline = kRanks, .schedule = schedule};
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = kRanks}));
  return plan.predicted_step_seconds;
}

// Returns the mean losses of parts of the run, kCurvePoints of them at most.
std::vector<double> Curve(const std::vector<double>& losses) {
  const auto count = std::min<std::int64_t>(kCurvePoints, std::ssize(losses));
  std::vector<double> means;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * std::ssize(losses) / count;
    const std::int64_t end = (i + 1) * std::ssize(losses) / count;
    double sum = 0;
    for (std::int64_t k = begin; k < end; ++k) sum += losses[static_cast<std::size_t>(k)];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  return means;
}

absl::StatusOr<nlohmann::json> Train(const config::JobSpec& job, const Options& options,
                                     const Way& way) {
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = 1}));
  std::vector<double> losses;
  ASSIGN_OR_RETURN(
      const LoneRankResult result,
      TrainLoneRank(job, plan, options.data, [&](const train::Trainer& trainer, StepId step) {
        losses.push_back(trainer.result(step).loss);
      }));
  const std::int64_t last = std::max<std::int64_t>(1, job.steps / 10);
  double train_loss = 0;
  for (auto it = losses.end() - last; it != losses.end(); ++it)
    train_loss += *it / static_cast<double>(last);
  return nlohmann::json{
      {"seed", job.seed},          {"way", way.name},
      {"steps", job.steps},        {"tokens", job.steps * job.global_batch * job.model.context},
      {"train_loss", train_loss},  {"validation_loss", result.validation_loss},
      {"minutes", result.minutes}, {"curve", Curve(losses)}};
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{.heading = "seed", .key = "seed"},
                               {.heading = "way", .key = "way", .width = 14},
                               {.heading = "steps", .key = "steps", .width = 6},
                               {"tokens M", "tokens", 8, 2, 1e-6},
                               {"time", "time", 5, 3},
                               {"train loss", "train_loss", 10, 4},
                               {"validation loss", "validation_loss", 15, 4},
                               {"minutes", "minutes", 7, 1}});
  ASSIGN_OR_RETURN(config::JobSpec job, Job(options));
  ASSIGN_OR_RETURN(const double flushed, StepSeconds(kFlushed));
  ASSIGN_OR_RETURN(const double delayed, StepSeconds(kDelayed));
  const double ratio = flushed / delayed;
  for (int i = 0; i < options.seeds; ++i) {
    job.seed = options.first_seed + static_cast<std::uint64_t>(i);
    for (const Way& way : kWays) {
      if (!options.only.empty() && std::ranges::find(options.only, way.name) == options.only.end())
        continue;
      const auto steps = way.short_run
                             ? static_cast<std::int64_t>(static_cast<double>(options.steps) / ratio)
                             : options.steps;
      ASSIGN_OR_RETURN(nlohmann::json row,
                       Train(JobOf(job, way, steps, options.feedback), options, way));
      // Of a pipeline, in units of what all steps take without a flush.
      row["time"] = static_cast<double>(steps) / static_cast<double>(options.steps) *
                    (way.delayed ? 1 : ratio);
      table.Add(row);
    }
  }
  table.End({{"model", options.model},
             {"ranks", kRanks},
             {"microbatches", kMicrobatches},
             {"learning_rate", job.adamw.learning_rate},
             {"feedback", options.feedback},
             {"step_time_ratio", ratio}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "delayed",
      "Losses with gradients that are a step late, beside those without delay: AdamW and Muon, "
      "with error feedback and without",
      [](CLI::App& command, Options& options) {
        command
            .add_option("--data", options.data,
                        "Folder with kjv.txt and val.txt (deploy/examples/make-kjv-text.sh)")
            ->required()
            ->check(CLI::ExistingDirectory);
        command
            .add_option("--model", options.model,
                        "example (1.3 million parameters) or gpt-10m (10 million)")
            ->check(CLI::IsMember({"example", "gpt-10m"}));
        command.add_option("--only", options.only, "These ways to train alone")
            ->check(CLI::IsMember(WayNames()));
        command.add_option("--seeds", options.seeds, "Runs of each way")->check(CLI::Range(1, 100));
        command.add_option("--first-seed", options.first_seed, "Of the first run");
        command.add_option("--steps", options.steps, "Steps of a run, of 4,096 tokens each")
            ->check(CLI::Range(20, 100'000));
        command
            .add_option("--learning-rate", options.learning_rate,
                        "Of both optimizers; 0: 2e-3 for the example and 1e-3 for gpt-10m")
            ->check(CLI::Range(0.0, 1.0));
        command.add_option("--feedback", options.feedback, "optimizer.error_feedback")
            ->check(CLI::Range(0.0, 1.0));
        command.add_option("--threads", options.threads, "Of the rank")->check(CLI::Range(1, 1024));
      },
      Run);
}

}  // namespace takt::bench::delayed_command
