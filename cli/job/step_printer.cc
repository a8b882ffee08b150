// SPDX-License-Identifier: Apache-2.0
#include "cli/job/step_printer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/message_json.h"
#include "cli/base/plain_nan.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/job/job_mesh.h"
#include "cli/job/job_text.h"

namespace takt::cli {
namespace {

constexpr std::int64_t kLineIntervalNanos = 2'000'000'000;
constexpr std::int64_t kBarIntervalNanos = 100'000'000;
// A job with at most this many steps prints every step.
constexpr std::int64_t kFewSteps = 20;

bool IsDue(std::optional<std::int64_t>& last, std::int64_t now, std::int64_t interval) {
  if (last.has_value() && now - *last < interval) return false;
  last = now;
  return true;
}

std::string BarText(const v1::StepReport& step, const v1::Job& job, double step_seconds,
                    int columns) {
  const std::int64_t steps = std::max<std::int64_t>(job.steps(), step.step());
  const double remaining_seconds = static_cast<double>(steps - step.step()) * step_seconds;
  const std::string text =
      absl::StrFormat(" %d/%d %s  loss %.4f  %s tokens/s  bubble %s  ETA %s", step.step(), steps,
                      FormatPercent(static_cast<double>(step.step()) / static_cast<double>(steps)),
                      PlainNan(step.loss()), FormatCount(step.tokens_per_second()),
                      FormatPercent(step.bubble_fraction()), FormatSeconds(remaining_seconds));
  const int width = std::min(40, columns - static_cast<int>(text.size()) - 3);
  if (width < 5) return text.substr(0, static_cast<std::size_t>(std::max(0, columns - 1)));
  const auto filled = static_cast<int>(width * step.step() / steps);
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '-'), "]", text);
}

std::string JobLine(const v1::Job& job) {
  std::string line = absl::StrCat(job.name(), ": ", StateName(job.state()));
  if (job.state() == v1::JOB_STATE_RUNNING && !job.schedule().empty()) {
    absl::StrAppend(&line, " ", job.schedule(), " on ", RanksText(job));
  }
  if (!job.reason().empty()) absl::StrAppend(&line, " (", job.reason(), ")");
  return line;
}

}  // namespace

StepPrinter::StepPrinter(const Context& context, const Clock& clock)
    : context_(context), clock_(clock) {}

StepPrinter::~StepPrinter() { WipeBar(); }

void StepPrinter::OnJob(const v1::Job& job) {
  if (job.checkpoint().step() > job_.checkpoint().step() && !job_.name().empty())
    Say(absl::StrCat("checkpoint: step ", job.checkpoint().step()));
  // Warnings come with the plan, not with the first state.
  for (int i = job_.warnings_size(); i < job.warnings_size(); ++i)
    Say(absl::StrCat("warning: ", job.warnings(i)));
  job_ = job;
  std::string line = JobLine(job);
  if (HasEnded(job.state()) || line == last_said_) return;
  Say(line);
  last_said_ = std::move(line);
}

void StepPrinter::Say(std::string_view line) {
  WipeBar();
  cli::Say(context_, line);
}

bool StepPrinter::OnStep(const v1::StepReport& step) {
  if (context_.json()) {
    WipeBar();
    PrintJson(context_, StepJson(job_.name(), step));
  } else if (LineIsDue(step)) {
    WipeBar();
    context_.terminal.out << StepLine(step, job_.steps()) << '\n' << std::flush;
  }
  smooth_step_seconds_ = Smoothed(smooth_step_seconds_, step.step_seconds());
  if (context_.terminal.err_is_tty) DrawBar(step);
  return context_.terminal.out.good();
}

void StepPrinter::OnEnd(const v1::Job& job) {
  std::string line = JobLine(job);
  if (job.has_last_step())
    absl::StrAppend(&line, " after step ", job.last_step().step(), "/", job.steps());
  Say(line);
  // If the input was wrong, or no fault ended the job, it does not matter what the ranks did.
  if (job.invalid_input() || job.state() != v1::JOB_STATE_FAILED) return;
  for (const v1::RankStatus& rank : job.fault()) Say(absl::StrCat("  ", FaultText(rank)));
}

bool StepPrinter::LineIsDue(const v1::StepReport& step) {
  const bool always = step.step() == 1 || step.step() == job_.steps() ||
                      job_.steps() <= kFewSteps || step.has_validation_loss();
  const bool due = IsDue(last_line_nanos_, clock_.SteadyNanos(), kLineIntervalNanos);
  return always || due;
}

void StepPrinter::DrawBar(const v1::StepReport& step) {
  if (!IsDue(last_bar_nanos_, clock_.SteadyNanos(), kBarIntervalNanos)) return;
  context_.terminal.err << "\r\x1b[K"
                        << BarText(step, job_, smooth_step_seconds_, context_.terminal.columns)
                        << std::flush;
  bar_is_drawn_ = true;
}

void StepPrinter::WipeBar() {
  if (!bar_is_drawn_) return;
  context_.terminal.err << "\r\x1b[K" << std::flush;
  bar_is_drawn_ = false;
}

double Smoothed(double smooth, double step_seconds) {
  return smooth == 0 ? step_seconds : smooth + (step_seconds - smooth) / 10;
}

std::string StepLine(const v1::StepReport& step, std::int64_t steps) {
  std::string line =
      absl::StrFormat("step %d/%d  loss %.5f  grad_norm %.4g  lr %.3g  %s tokens/s  %s  bubble %s",
                      step.step(), steps, PlainNan(step.loss()), PlainNan(step.grad_norm()),
                      step.learning_rate(), FormatCount(step.tokens_per_second()),
                      FormatSeconds(step.step_seconds()), FormatPercent(step.bubble_fraction()));
  if (step.bubble_by_pp_rank_size() > 1) {
    std::string ranks;
    for (const double bubble : step.bubble_by_pp_rank()) {
      absl::StrAppend(&ranks, ranks.empty() ? "" : " ", std::lround(bubble * 100));
    }
    absl::StrAppend(&line, " [", ranks, "]");
  }
  if (step.has_validation_loss())
    absl::StrAppendFormat(&line, "  validation_loss %.5f", PlainNan(step.validation_loss()));
  return line;
}

}  // namespace takt::cli
