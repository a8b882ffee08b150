// SPDX-License-Identifier: Apache-2.0
#include "cli/job/timeline_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/trace/labels.h"
#include "common/trace/page.h"
#include "common/trace/perfetto.h"
#include "common/trace/svg.h"
#include "common/trace/timeline.h"

namespace takt::cli {
namespace {

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

}  // namespace

absl::StatusOr<TimelineFile> WriteTimeline(const Context& context, Client& client,
                                           const TimelineFileOptions& options) {
  ASSIGN_OR_RETURN(
      const trace::JobTrace trace,
      client.GetTrace(options.job,
                      {.first = options.first, .last = options.last, .newest = options.newest},
                      context.timeout()));
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(trace));
  ASSIGN_OR_RETURN(Picture picture, Draw(timeline, options.format));
  RETURN_IF_ERROR(WriteNewFile(options.file, picture.text));
  return TimelineFile{
      .first = timeline.steps.front().step.value(),
      .last = timeline.steps.back().step.value(),
      .steps = trace::StepsName(timeline),
      .num_steps = timeline.steps.size(),
      .bytes = picture.text.size(),
      .num_ranks = trace.num_ranks(),
      .left_out = std::move(picture.left_out),
      .clock_error_seconds = 1e-9 * static_cast<double>(timeline.clock_error_nanos)};
}

void SayTimeline(const Context& context, const TimelineFileOptions& options,
                 const TimelineFile& written) {
  const std::string hint = options.format == "perfetto" ? "; open it at ui.perfetto.dev" : "";
  Say(context, absl::StrFormat("%s: %s of %s, %.1f MB%s", options.file, written.steps,
                               Counted(written.num_ranks, "rank"),
                               1e-6 * static_cast<double>(written.bytes), hint));
  if (written.left_out.empty()) return;
  Say(context, absl::StrCat("left out, to stay below 50 MB: ", written.left_out,
                            "; take fewer steps to see all"));
}

}  // namespace takt::cli
