// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/client/client.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/timeline_file.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct TraceOptions {
  std::string name, steps, format = "html", file;
  int last = 3;
};

struct StepsWanted {
  std::int64_t first = 0, last = 0;  // both 0: the newest
};

// Parses "5..8" or "5". Empty means the newest steps.
absl::StatusOr<StepsWanted> ParseSteps(const std::string& text) {
  if (text.empty()) return StepsWanted{};
  const std::vector<std::string> ends = absl::StrSplit(text, absl::MaxSplits("..", 1));
  StepsWanted steps;
  if (absl::SimpleAtoi(ends.front(), &steps.first) && absl::SimpleAtoi(ends.back(), &steps.last) &&
      steps.first >= 1 && steps.first <= steps.last) {
    return steps;
  }
  return InvalidField({.field = "--steps",
                       .value = text,
                       .rule = "must be a step or A..B, counted from 1, A not above B",
                       .fix = "e.g. --steps 5..8"});
}

absl::StatusOr<ExitCode> Trace(const Context& context, const TraceOptions& options) {
  ASSIGN_OR_RETURN(const StepsWanted steps, ParseSteps(options.steps));
  // Checks the file before any request. It is written at the end.
  RETURN_IF_ERROR(CheckNewFile(options.file));
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  const TimelineFileOptions wanted{.job = options.name,
                                   .file = options.file,
                                   .format = options.format,
                                   .first = steps.first,
                                   .last = steps.last,
                                   .newest = options.last};
  ASSIGN_OR_RETURN(const TimelineFile written, WriteTimeline(context, *client, wanted));
  if (context.json()) {
    PrintJson(context, {{"file", options.file},
                        {"format", options.format},
                        {"first_step", written.first},
                        {"last_step", written.last},
                        {"steps", written.num_steps},
                        {"ranks", written.num_ranks},
                        {"bytes", written.bytes},
                        {"left_out", written.left_out},
                        {"clock_error_seconds", written.clock_error_seconds}});
  } else {
    SayTimeline(context, wanted, written);
  }
  return ExitCode::kDone;
}

}  // namespace

void AddTrace(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<TraceOptions>(
      app, context, "trace",
      "Write the measured timeline of some steps, with the prediction under it",
      [](CLI::App& app, TraceOptions& options) {
        app.add_option("JOB", options.name, "Job")->type_name("")->required();
        app.add_option("FILE", options.file, "File to write; it must not exist yet")
            ->type_name("")
            ->required();
        app.add_option("-f,--format", options.format,
                       "html (a page), perfetto (for ui.perfetto.dev) or svg (a picture)")
            ->check(CLI::IsMember({"html", "perfetto", "svg"}))
            ->capture_default_str();
        CLI::Option* steps = app.add_option("--steps", options.steps,
                                            "A..B, or one step (default: the newest three)")
                                 ->type_name("A..B");
        app.add_option("--last", options.last, "How many of the newest steps")
            ->check(CLI::Range(1, 1000))
            ->excludes(steps)
            ->capture_default_str();
      },
      Trace);
  command->footer(
      "The coordinator keeps the last steps of each job, up to 64 MB. Not every step that lasts "
      "less "
      "than\n20 ms is measured.\n\nExamples:\n"
      "  takt trace kjv-gpt timeline.html\n"
      "  takt trace kjv-gpt --steps 100..110 -f perfetto trace.json\n"
      "  takt trace kjv-gpt --last 1 -f svg step.svg");
}

}  // namespace takt::cli
