// SPDX-License-Identifier: Apache-2.0
#include "common/explain/explain.h"

#include <algorithm>

#include "cli/base/report.h"
#include "cli/client/client.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/replan_advice.h"
#include "common/base/status.h"
#include "common/explain/advice.h"
#include "common/explain/text.h"

namespace takt::cli {
namespace {

// The usual time of a rank, and how far its clock is from those of others, come from this many kept
// steps up to the requested one and as many from it on. So the newest step has the same numbers
// whether its number is given or not.
constexpr int kSteps = 8;

struct ExplainOptions {
  std::string name;
  std::int64_t step = 0;  // 0: the newest
};

Json PartsJson(const explain::Parts& parts) {
  Json json = Json::object();
  for (int i = 0; i < explain::kNumParts; ++i) {
    json[std::string(Name(explain::Part(i)))] = parts[i];
  }
  return json;
}

Json RankJson(int rank, const explain::RankSplit& split) {
  Json idle = Json::object();
  for (int cause = 1; cause <= trace::kNumCauses; ++cause) {
    idle[std::string(Name(trace::Cause(cause)))] = split.idle_seconds[cause];
  }
  return {{"rank", rank},
          {"parts", PartsJson(split.parts)},
          {"busy_seconds", split.busy_seconds},
          {"idle_seconds", std::move(idle)},
          {"stalled_seconds", split.stalled_seconds}};
}

Json ToJson(const explain::Explanation& explanation, const std::vector<explain::Advice>& advice) {
  Json json = {{"step", explanation.step.value()},
               {"step_seconds", explanation.step_seconds},
               {"bubble_fraction", explanation.bubble_fraction},
               {"parts", PartsJson(explanation.parts)},
               {"ranks", Json::array()},
               {"advice", Json::array()}};
  if (explanation.predicted_step_seconds.has_value()) {
    json["predicted_step_seconds"] = *explanation.predicted_step_seconds;
    json["predicted_bubble_fraction"] = *explanation.predicted_bubble_fraction;
  }
  if (explanation.redone_seconds > 0) json["redone_seconds"] = explanation.redone_seconds;
  if (explanation.undone.has_value()) {
    const explain::Undone& undone = *explanation.undone;
    json["undone"] = {{"steps", undone.steps}, {"of", undone.of}, {"seconds", undone.seconds}};
  }
  for (std::size_t rank = 0; rank < explanation.ranks.size(); ++rank) {
    json["ranks"].push_back(RankJson(static_cast<int>(rank), explanation.ranks[rank]));
  }
  if (explanation.worst_op.has_value()) {
    const explain::WorstOp& worst = *explanation.worst_op;
    json["worst_op"] = {{"rank", worst.rank},
                        {"stage", worst.stage.value()},
                        {"kind", program::Name(worst.op)},
                        {"seconds", worst.seconds},
                        {"mean_seconds", worst.mean_seconds}};
  }
  if (explanation.worst_link.has_value()) {
    const explain::WorstLink& worst = *explanation.worst_link;
    json["worst_link"] = {{"from", worst.from},
                          {"to", worst.to},
                          {"seconds", worst.seconds},
                          {"others_seconds", worst.others_seconds}};
  }
  for (const explain::Advice& each : advice) {
    json["advice"].push_back({{"kind", Name(each.kind)},
                              {"text", each.text},
                              {"saved_seconds", each.saved_seconds},
                              {"saved_fraction", each.saved_fraction}});
  }
  return json;
}

absl::StatusOr<ExitCode> Explain(const Context& context, const ExplainOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  const bool newest = options.step == 0;
  TracedSteps steps{.newest = kSteps};
  if (!newest) {
    steps.first = std::max<std::int64_t>(1, options.step - kSteps + 1);
    steps.last = options.step + kSteps - 1;
    steps.around = options.step;
  }
  ASSIGN_OR_RETURN(const trace::JobTrace trace,
                   client->GetTrace(options.name, steps, context.timeout()));
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(trace));
  const StepId step = newest ? timeline.steps.back().step : StepId(options.step);
  ASSIGN_OR_RETURN(const explain::Explanation explanation, explain::Explain(timeline, step));
  ASSIGN_OR_RETURN(std::vector<explain::Advice> advice, explain::Advise(timeline, step));
  if (auto replanning = AdviseReplanning(*client, options.name, timeline))
    advice.push_back(*std::move(replanning));
  if (context.json()) {
    PrintJson(context, ToJson(explanation, advice));
  } else {
    context.terminal.out << ToString(explanation, advice) << std::flush;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddExplain(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<ExplainOptions>(
      app, context, "explain", "Split the time of a step by cause, and say what would help",
      [](CLI::App& app, ExplainOptions& options) {
        app.add_option("JOB", options.name, "Job")->type_name("")->required();
        app.add_option("--step", options.step, "Step (default: the newest)")
            ->check(CLI::PositiveNumber);
      },
      Explain);
  command->footer(
      "The parts add up to the measured step. They are differences of re-simulations of the step's "
      "own\n"
      "program; so is each line of advice.\n\nExamples:\n"
      "  takt explain kjv-gpt\n  takt explain kjv-gpt --step 120 -o json");
}

}  // namespace takt::cli
