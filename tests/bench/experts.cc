// SPDX-License-Identifier: Apache-2.0
// Trains the model of deploy/examples/experts.yaml, and the dense one of as many active parameters,
// on the example's text. It prints how evenly the experts were used, and both losses of text that
// was held out.
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/lone_rank.h"
#include "tests/bench/table.h"
#include "worker/train/trainer.h"

namespace takt::bench::experts_command {
namespace {

// The rows of the fullest expert of a block over the mean of its experts.
constexpr double kLoadLimit = 1.5;
// The job scores so much of the example's 200 KB of held-out text.
constexpr int kValidationBytes = 160 << 10;
constexpr const char* kDense = "dense";
constexpr const char* kExperts = "experts";

struct Options : CommonOptions {
  std::string data, scores = "softmax";
  std::string only;  // a model; empty: both
  std::uint64_t first_seed = 1235;
  int seeds = 3, threads = 2;
  std::int64_t steps = 1000;
  int batch = 0;  // sequences of a step; 0: the example's
  std::optional<double> auxiliary_loss;
  // Of the learning rate of experts, or of the dense model's MLP if that is the only one. None: the
  // example's, which the dense model does not have.
  std::optional<double> rate_scale;
  int cuts = 1;  // each expert of the example is cut into so many
};

// How evenly the experts of each block were used, over some steps.
class Loads {
 public:
  void Add(const std::vector<train::ExpertLoad>& step) {
    ++steps_;
    for (const train::ExpertLoad& load : step) {
      sums_[load.block] += load.max_over_mean;
      worst_ = std::max(worst_, load.max_over_mean);
    }
  }
  // Returns the mean over the steps of the block that is loaded least evenly.
  double MeanOfWorstBlock() const {
    double worst = 0;
    for (const auto& [block, sum] : sums_)
      worst = std::max(worst, sum / static_cast<double>(steps_));
    return worst;
  }
  double worst() const { return worst_; }  // of a block in a step

 private:
  std::map<int, double> sums_;  // by block
  double worst_ = 0;
  std::int64_t steps_ = 0;
};

struct Outcome {
  std::int64_t parameters = 0, active = 0;  // of the model, and those that a token uses
  double train_loss = 0, validation_loss = 0;
  Loads loads = {};  // train_loss, loads: of the last tenth of the steps
  double minutes = 0;
};

void ScaleRate(const char* parameters, const Options& options, config::JobSpec& job) {
  if (options.rate_scale.has_value())
    job.groups = {{.parameters = parameters, .learning_rate_scale = *options.rate_scale}};
}

absl::StatusOr<config::JobSpec> ExpertsJob(const Options& options) {
  ASSIGN_OR_RETURN(config::JobSpec job, ExampleJob("experts.yaml", options.threads));
  if (options.scores == "sigmoid") {
    job.model.mixture->scores = model::RouterScores::kSigmoid;
    job.model.mixture->auxiliary_loss = 1e-4;
  }
  if (options.auxiliary_loss.has_value())
    job.model.mixture->auxiliary_loss = *options.auxiliary_loss;
  ScaleRate("*.experts.*", options, job);
  model::Mixture& mixture = *job.model.mixture;
  mixture.experts *= options.cuts;
  mixture.chosen *= options.cuts;
  mixture.inner /= options.cuts;
  if (options.batch > 0) job.global_batch = job.microbatch = options.batch;
  job.steps = options.steps;
  job.lr_schedule.warmup_steps = options.steps / 20;
  job.lr_schedule.decay_steps = options.steps;
  job.validation->every_steps = options.steps;
  job.validation->batches = kValidationBytes / (job.global_batch * job.model.context);
  return job;
}

// Puts one MLP in the place of the experts. It is as wide as those of a token together.
void MakeDense(const Options& options, config::JobSpec& job) {
  job.groups.clear();
  if (options.only == kDense) ScaleRate("*.mlp.*", options, job);
  model::ModelConfig& model = job.model;
  model.family = model::Family::kLlama;
  model.inner = model.mixture->chosen * model.mixture->inner;
  model.mixture.reset();
}

std::int64_t ActiveParameters(const model::Model& model) {
  std::int64_t active = model.num_parameters();
  for (const model::Layer& layer : model.layers) {
    if (!model::HasExperts(layer.kind)) continue;
    const model::Mixture& mixture = *model.config.mixture;
    const std::int64_t of_expert = std::int64_t{3} * model.config.hidden * mixture.inner;
    active -= (mixture.experts - mixture.chosen) * of_expert;
  }
  return active;
}

absl::StatusOr<Outcome> Train(const config::JobSpec& job, const Options& options) {
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = 1}));
  Outcome outcome{.parameters = plan.model.num_parameters(),
                  .active = ActiveParameters(plan.model)};
  const std::int64_t counted = std::max<std::int64_t>(1, job.steps / 10);
  ASSIGN_OR_RETURN(
      const LoneRankResult result,
      TrainLoneRank(job, plan, options.data, [&](const train::Trainer& trainer, StepId step) {
        if (step.value() <= job.steps - counted) return;
        outcome.train_loss += trainer.result(step).loss / static_cast<double>(counted);
        outcome.loads.Add(trainer.expert_loads(step));
      }));
  outcome.validation_loss = result.validation_loss;
  outcome.minutes = result.minutes;
  return outcome;
}

nlohmann::json RowOf(const std::string& model, std::uint64_t seed, const Outcome& outcome) {
  return {{"seed", seed},
          {"model", model},
          {"parameters", outcome.parameters},
          {"active", outcome.active},
          {"train_loss", outcome.train_loss},
          {"validation_loss", outcome.validation_loss},
          {"load", nullptr},
          {"worst_load", nullptr},
          {"minutes", outcome.minutes}};
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{.heading = "seed", .key = "seed"},
                               {.heading = "model", .key = "model", .width = 8},
                               {"parameters M", "parameters", 12, 2, 1e-6},
                               {"active M", "active", 8, 2, 1e-6},
                               {"train loss", "train_loss", 10, 4},
                               {"validation loss", "validation_loss", 15, 4},
                               {"load", "load", 6, 3},
                               {"worst", "worst_load", 6, 3},
                               {"minutes", "minutes", 7, 1}});
  ASSIGN_OR_RETURN(config::JobSpec experts_job, ExpertsJob(options));
  config::JobSpec dense_job = experts_job;
  MakeDense(options, dense_job);
  bool holds = true;
  for (int i = 0; i < options.seeds; ++i) {
    const std::uint64_t seed = options.first_seed + static_cast<std::uint64_t>(i);
    experts_job.seed = seed;
    dense_job.seed = seed;
    std::optional<double> dense_loss;
    if (options.only != kExperts) {
      ASSIGN_OR_RETURN(const Outcome dense, Train(dense_job, options));
      table.Add(RowOf(kDense, seed, dense));
      dense_loss = dense.validation_loss;
    }
    if (options.only == kDense) continue;
    ASSIGN_OR_RETURN(const Outcome experts, Train(experts_job, options));
    nlohmann::json row = RowOf(kExperts, seed, experts);
    const double load = experts.loads.MeanOfWorstBlock();
    row["load"] = load;
    row["worst_load"] = experts.loads.worst();
    const bool learns = !dense_loss.has_value() || experts.validation_loss < *dense_loss;
    const bool even = load < kLoadLimit;
    std::string remark;
    if (!learns) absl::StrAppend(&remark, "not below the dense model ");
    if (!even) absl::StrAppend(&remark, "uneven");
    table.Add(row, remark);
    holds = holds && learns && even;
  }
  table.End({{"scores", options.scores},
             {"rate_scale", options.rate_scale.has_value() ? nlohmann::json(*options.rate_scale)
                                                           : nlohmann::json(nullptr)},
             {"cuts", options.cuts},
             {"load_limit", kLoadLimit},
             {"steps", options.steps},
             {"holds", holds}});
  if (holds) return absl::OkStatus();
  return absl::InternalError("the experts were uneven, or not better than the dense model");
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "experts",
      "Loads of experts, and their loss beside that of the dense model of the same active size",
      [](CLI::App& command, Options& options) {
        command
            .add_option("--data", options.data,
                        "Folder with kjv.txt and val.txt (deploy/examples/make-kjv-text.sh)")
            ->required()
            ->check(CLI::ExistingDirectory);
        command
            .add_option("--scores", options.scores,
                        "softmax with the example's auxiliary loss, or sigmoid with a bias")
            ->check(CLI::IsMember({"softmax", "sigmoid"}));
        command.add_option("--only", options.only, "This model alone, beside no other")
            ->check(CLI::IsMember({kDense, kExperts}));
        command.add_option("--first-seed", options.first_seed, "Of the first run of each model");
        command.add_option("--seeds", options.seeds, "Runs of each model")
            ->check(CLI::Range(1, 100));
        command.add_option("--steps", options.steps, "Steps of a run")
            ->check(CLI::Range(20, 100'000));
        command
            .add_option("--batch", options.batch,
                        "Sequences of 128 tokens a step, all in one microbatch; default: the "
                        "example's 32")
            ->check(CLI::Range(1, 1024));
        command
            .add_option("--auxiliary-loss", options.auxiliary_loss,
                        "Weight of the loss that balances experts, in place of that of --scores")
            ->check(CLI::Range(0.0, 1.0));
        command
            .add_option("--rate-scale", options.rate_scale,
                        "The learning rate of experts, or with --only dense of the MLP, over that "
                        "of all other parameters; default: the example's")
            ->check(CLI::Range(0.01, 100.0));
        command
            .add_option("--cuts", options.cuts,
                        "Cut each expert into so many, of which a token uses as many times more")
            ->check(CLI::IsMember({1, 2, 4}));
        command.add_option("--threads", options.threads, "Of the worker")
            ->check(CLI::Range(1, 1024));
      },
      Run);
}

}  // namespace takt::bench::experts_command
