// SPDX-License-Identifier: Apache-2.0
// Measures what it costs to split the layers of a real model: the step of two ranks with one thread
// each beside that of one process with two threads, and the step with eight leaves beside the one
// with whole layers, on one thread.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/job_run.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "tests/bench/train_job.h"

namespace takt::bench::split_command {
namespace {

constexpr double kLimit = 1.12;  // of two ranks over one process
constexpr int kWarmupSteps = 1;

struct Options : CommonOptions {
  std::string model = "gpt2-124m";
  std::vector<std::string> precisions = {"f32", "bf16"};
  int turns = 3, steps = 3, batch = 8, context = 256;
};

// Says how a job splits its layers.
struct Way {
  int tensor = 1, leaves = 1;
  int threads = 1;  // of each rank
};

struct Comparison {
  std::string name;
  Way whole, split;
  int heads = 0;     // in place of the model's; 0: those of the model
  double limit = 0;  // 0: none
};

// GPT-2's twelve heads cannot be cut into eight leaves. Sixteen smaller ones take as many products.
std::vector<Comparison> Comparisons() {
  return {{.name = "tensor 2, 1 thread each / 2 threads",
           .whole = {.threads = 2},
           .split = {.tensor = 2, .leaves = 2},
           .limit = kLimit},
          {.name = "tensor_leaves 8 / 1, 16 heads, 1 thread", .split = {.leaves = 8}, .heads = 16}};
}

absl::StatusOr<double> MedianStepSeconds(const Comparison& comparison, const Way& way,
                                         const TrainJobOptions& options,
                                         const std::string& data_root) {
  config::JobSpec job = TrainJob(options);
  if (comparison.heads > 0) {
    job.model.heads = job.model.kv_heads = comparison.heads;
    job.model.head_size = 0;
  }
  job.parallelism.tensor = way.tensor;
  job.parallelism.tensor_leaves = way.leaves;
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = way.tensor}));
  ASSIGN_OR_RETURN(const JobRun run, RunJob(job, plan, way.threads, data_root));
  std::vector<double> seconds = run.SecondsAfter(kWarmupSteps);
  if (seconds.empty()) return absl::InternalError("no step was measured");
  return Median(std::move(seconds));
}

// Returns the row of the table. The two ways take turns, so that a slow minute is not one's alone.
absl::StatusOr<nlohmann::json> Measure(const Comparison& comparison, const std::string& precision,
                                       const Options& options) {
  const TrainJobOptions train{.model = options.model,
                              .precision = precision,
                              .batch = options.batch,
                              .context = options.context,
                              .steps = options.steps,
                              .warmup = kWarmupSteps};
  const TokenFolder tokens(train);
  std::vector<double> whole, split, ratios;
  for (int turn = 0; turn < options.turns; ++turn) {
    for (const bool splits : {turn % 2 == 0, turn % 2 != 0}) {
      ASSIGN_OR_RETURN(const double seconds,
                       MedianStepSeconds(comparison, splits ? comparison.split : comparison.whole,
                                         train, tokens.path()));
      (splits ? split : whole).push_back(seconds);
    }
    ratios.push_back(split.back() / whole.back());
  }
  nlohmann::json row = {{"what", comparison.name},        {"precision", precision},
                        {"whole_seconds", Median(whole)}, {"split_seconds", Median(split)},
                        {"ratio", Median(ratios)},        {"spread", Spread(ratios)}};
  if (comparison.limit > 0) {
    row["limit"] = comparison.limit;
    row["holds"] = Median(ratios) <= comparison.limit;
  } else {
    row["limit"] = nullptr;
  }
  return row;
}

absl::Status Run(const Options& options) {
  if (!options.json()) {
    absl::PrintF("%s, %d sequences of %d tokens a step; medians of %d steps, %d turns\n",
                 options.model, options.batch, options.context, options.steps, options.turns);
  }
  Table table(options.json(), {{.heading = "", .key = "what", .width = 40},
                               {.heading = "precision", .key = "precision"},
                               {"whole ms", "whole_seconds", 9, 0, 1e3},
                               {"split ms", "split_seconds", 9, 0, 1e3},
                               {.heading = "ratio", .key = "ratio", .width = 6, .precision = 3},
                               {.heading = "limit", .key = "limit", .width = 6, .precision = 2}});
  for (const Comparison& comparison : Comparisons()) {
    for (const std::string& precision : options.precisions) {
      ASSIGN_OR_RETURN(const nlohmann::json row, Measure(comparison, precision, options));
      table.Add(row, row.value("holds", true) ? "" : "over");
    }
  }
  table.End({{"model", options.model}, {"turns", options.turns}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "split", "Steps of a real model whose layers are split, beside whole ones",
      [](CLI::App& command, Options& options) {
        command.add_option("--model", options.model, "gpt2-124m, or a smaller one to try it")
            ->check(CLI::IsMember({"tiny", "gpt2-6m", "gpt2-124m"}));
        command.add_option("--precision", options.precisions, "f32, bf16")
            ->delimiter(',')
            ->check(CLI::IsMember({"f32", "bf16"}));
        command.add_option("--turns", options.turns, "Runs of each way")->check(CLI::Range(2, 100));
        command.add_option("--steps", options.steps, "Steps of each run that count")
            ->check(CLI::Range(1, 1000));
        command.add_option("--batch", options.batch, "Sequences of a step")
            ->check(CLI::Range(1, 1024));
        command.add_option("--context", options.context, "Tokens of a sequence")
            ->check(CLI::Range(8, 4096));
      },
      Run);
}

}  // namespace takt::bench::split_command
