// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/new_file.h"
#include "cli/report.h"
#include "common/base/status.h"
#include "common/trace/page.h"
#include "common/trace/perfetto.h"
#include "common/trace/svg.h"
#include "common/trace/timeline.h"

namespace takt::cli {
namespace {

struct TraceOptions {
  std::string name, steps, format = "html", file;
  int last = 3;
};

struct StepsWanted {
  std::int64_t first = 0, last = 0;  // both 0: the newest
};

// "5..8", "5"; empty: the newest.
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

struct Picture {
  std::string text;
  std::string left_out;
};

absl::StatusOr<Picture> Draw(const trace::Timeline& timeline, const std::string& format) {
  if (format == "perfetto") {
    ASSIGN_OR_RETURN(trace::PerfettoFile file, trace::WritePerfetto(timeline));
    return Picture{std::move(file.json), std::move(file.left_out)};
  }
  if (format == "svg") {
    ASSIGN_OR_RETURN(std::string text, trace::RenderSvg(timeline));
    return Picture{std::move(text), ""};
  }
  return Picture{trace::WritePage(timeline), ""};
}

absl::StatusOr<ExitCode> Trace(const Context& context, const TraceOptions& options) {
  ASSIGN_OR_RETURN(const StepsWanted steps, ParseSteps(options.steps));
  // Before anything is asked for; made for good at the end.
  RETURN_IF_ERROR(CheckNewFile(options.file));
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(
      const trace::JobTrace trace,
      client->GetTrace(options.name, steps.first, steps.last, options.last, context.timeout()));
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(trace));
  ASSIGN_OR_RETURN(const Picture picture, Draw(timeline, options.format));
  RETURN_IF_ERROR(WriteNewFile(options.file, picture.text));
  const std::int64_t first = timeline.steps.front().step.value();
  const std::int64_t last = timeline.steps.back().step.value();
  if (context.json()) {
    PrintJson(context,
              {{"file", options.file},
               {"format", options.format},
               {"first_step", first},
               {"last_step", last},
               {"steps", timeline.steps.size()},
               {"ranks", trace.num_ranks()},
               {"bytes", picture.text.size()},
               {"left_out", picture.left_out},
               {"clock_error_seconds", 1e-9 * static_cast<double>(timeline.clock_error_nanos)}});
    return ExitCode::kDone;
  }
  const std::string hint = options.format == "perfetto" ? "; open it at ui.perfetto.dev" : "";
  Say(context,
      absl::StrFormat("%s: steps %d to %d of %d ranks, %.1f MB%s", options.file, first, last,
                      trace.num_ranks(), 1e-6 * static_cast<double>(picture.text.size()), hint));
  if (!picture.left_out.empty()) {
    Say(context, absl::StrCat("left out, to stay below 50 MB: ", picture.left_out,
                              "; take fewer steps to see all"));
  }
  return ExitCode::kDone;
}

}  // namespace

void AddTrace(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<TraceOptions>(
      app, context, "trace", "Write the measured timeline of some steps, the prediction under it",
      [](CLI::App& app, TraceOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
        app.add_option("FILE", options.file, "File to write; it must not be there yet")
            ->type_name("")
            ->required();
        app.add_option("-f,--format", options.format,
                       "html (a page), perfetto (for ui.perfetto.dev) or svg (a picture)")
            ->check(CLI::IsMember({"html", "perfetto", "svg"}))
            ->capture_default_str();
        CLI::Option* steps =
            app.add_option("--steps", options.steps, "A..B, or one step (default: the newest)")
                ->type_name("A..B");
        app.add_option("--last", options.last, "How many of the newest steps")
            ->check(CLI::Range(1, 1000))
            ->excludes(steps)
            ->capture_default_str();
      },
      Trace);
  command->footer(
      "The last steps of each job are kept, up to 64 MB; a step that lasts less than 20 ms is not "
      "always\n"
      "measured.\n\nExamples:\n"
      "  takt trace kjv-gpt timeline.html\n"
      "  takt trace kjv-gpt --steps 100..110 -f perfetto trace.json\n"
      "  takt trace kjv-gpt --last 1 -f svg step.svg");
}

}  // namespace takt::cli
