// SPDX-License-Identifier: Apache-2.0
// Measures the bubble of a small model with a large vocabulary: with the head on the rank with the
// last stage, and with the vocabulary spread over the ranks.
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/explain/explain.h"
#include "common/plan/plan.h"
#include "common/trace/timeline.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/job_run.h"
#include "tests/bench/plan_truth_jobs.h"
#include "tests/bench/plan_truth_machine.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"

namespace takt::bench::imbalance_command {
namespace {

using config::Vocabulary;

constexpr double kLimit = 0.5;  // of the bubble of `last`
constexpr int kSkippedSteps = 3;

struct Options : CommonOptions {
  std::string schedule = "1f1b";
  int ranks = 2, microbatches = 16, steps = 20;
};

struct Row {
  std::string vocabulary;
  std::vector<int> blocks, words;  // blocks of each stage, and words of each rank
  double step_seconds = 0, predicted_step_seconds = 0;
  double bubble = 0, predicted_bubble = 0, spread = 0;  // spread: of the measured bubble
};

// Returns a job with GPT-2's vocabulary and four narrow blocks.
config::JobSpec JobOf(const Options& options) {
  config::JobSpec job;
  job.name = "imbalance";
  job.model = {.family = model::Family::kGpt2,
               .layers = 4,
               .hidden = 512,
               .heads = 4,
               .kv_heads = 4,
               .inner = 2048,
               .context = 64,
               .positions = 64,
               .vocab = 50257};
  job.train = TrainingDataOf(job.model);
  job.global_batch = options.microbatches;
  job.steps = kSkippedSteps + options.steps;
  job.parallelism = {.pipeline = options.ranks,
                     .data = 1,
                     .threads = 1,
                     .schedule = options.schedule,
                     .transport = config::TransportKind::kShm};
  return job;
}

absl::StatusOr<Row> Measure(config::JobSpec job, Vocabulary vocabulary,
                            const plan::PlanOptions& plan_options, const std::string& data_root) {
  job.parallelism.vocabulary = vocabulary;
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, plan_options));
  ASSIGN_OR_RETURN(const JobRun run, RunJob(job, plan, ThreadsOf(job), data_root));
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(run.trace));
  std::vector<double> seconds, bubbles;
  for (const trace::StepWindow& window : timeline.steps) {
    if (window.step <= StepId(kSkippedSteps)) continue;
    ASSIGN_OR_RETURN(const explain::Explanation step, explain::Explain(timeline, window.step));
    seconds.push_back(step.step_seconds);
    bubbles.push_back(step.bubble_fraction);
  }
  if (bubbles.empty()) return absl::InternalError("no step was traced");
  Row row{.vocabulary = vocabulary == Vocabulary::kSpread ? "spread" : "last",
          .step_seconds = Median(std::move(seconds)),
          .predicted_step_seconds = plan.predicted_step_seconds,
          .bubble = Median(bubbles),
          .predicted_bubble = plan.predicted_bubble_fraction,
          .spread = Spread(bubbles)};
  for (const mesh::Stage& stage : plan.partition) {
    int blocks = 0;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i)
      blocks += plan.model.layers[i].block >= 0 ? 1 : 0;
    row.blocks.push_back(blocks);
  }
  for (PpRank rank(0); rank.value() < std::ssize(plan.vocabulary_ends); ++rank) {
    const mesh::WordRun words = mesh::WordsOf(plan.vocabulary_ends, rank, plan.model.config.vocab);
    row.words.push_back(static_cast<int>(words.words));
  }
  return row;
}

nlohmann::json RowJson(const Row& row) {
  return {{"vocabulary", row.vocabulary},
          {"stage_layers", absl::StrJoin(row.blocks, ",")},
          {"words", absl::StrJoin(row.words, ",")},
          {"step_seconds", row.step_seconds},
          {"predicted_step_seconds", row.predicted_step_seconds},
          {"bubble_fraction", row.bubble},
          {"bubble_spread", row.spread},
          {"predicted_bubble_fraction", row.predicted_bubble}};
}

absl::Status Run(const Options& options) {
  const config::JobSpec job = JobOf(options);
  const TruthTokens tokens(std::vector<config::JobSpec>{job});
  TruthMachine machine(tokens.path());
  auto profile = std::make_shared<profile::Profile>();
  RETURN_IF_ERROR(machine.Learn(job, options.ranks, *profile));
  const plan::PlanOptions plan_options = TruthMachine::OptionsFor(job, profile);
  if (!options.json()) {
    absl::PrintF("%s, %d ranks of one thread, %d microbatches; medians of %d steps\n",
                 options.schedule, options.ranks, options.microbatches, options.steps);
  }
  Table table(options.json(), {{"vocabulary", "vocabulary", 10},
                               {"blocks", "stage_layers", 6},
                               {"words", "words", 12},
                               {"step ms", "step_seconds", 9, 2, 1e3},
                               {"predicted", "predicted_step_seconds", 9, 2, 1e3},
                               {"bubble", "bubble_fraction", 8, 4},
                               {"+-", "bubble_spread", 7, 4},
                               {"predicted", "predicted_bubble_fraction", 9, 4}});
  ASSIGN_OR_RETURN(const Row last, Measure(job, Vocabulary::kLast, plan_options, tokens.path()));
  table.Add(RowJson(last));
  ASSIGN_OR_RETURN(const Row spread,
                   Measure(job, Vocabulary::kSpread, plan_options, tokens.path()));
  const double ratio = spread.bubble / last.bubble;
  table.Add(RowJson(spread), absl::StrFormat("%.2f of the bubble of last (limit %g)%s", ratio,
                                             kLimit, ratio > kLimit ? ": over" : ""));
  table.End({{"bubble_ratio", ratio}, {"limit", kLimit}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "imbalance",
      "The bubble of a small model with a large vocabulary: with a whole head, and with the words "
      "spread over the ranks",
      [](CLI::App& command, Options& options) {
        command.add_option("--schedule", options.schedule, "Family");
        command.add_option("--ranks", options.ranks, "Of the pipeline, a core each")
            ->check(CLI::Range(2, 6));
        command.add_option("--microbatches", options.microbatches, "Of a step, one sequence each")
            ->check(CLI::Range(1, 1024));
        command.add_option("--steps", options.steps, "Steps of which medians are taken")
            ->check(CLI::Range(1, 500));
      },
      Run);
}

}  // namespace takt::bench::imbalance_command
