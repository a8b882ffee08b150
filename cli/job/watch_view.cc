// SPDX-License-Identifier: Apache-2.0
#include "cli/job/watch_view.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/base/message_json.h"
#include "cli/base/plain_nan.h"
#include "cli/base/text.h"
#include "cli/job/job_mesh.h"
#include "cli/job/step_printer.h"
#include "cli/terminal/styled_line.h"

namespace takt::cli {
namespace {

using Lines = std::vector<StyledLine>;

constexpr int kMinCurveRows = 3, kMaxCurveRows = 12;
constexpr int kMinBar = 10, kMaxBar = 60;
constexpr char kFooter[] = "Ctrl-C stops watching; the job goes on";

Style StyleOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_SUCCEEDED:
      return Style::kGood;
    case v1::JOB_STATE_FAILED:
      return Style::kBad;
    case v1::JOB_STATE_RECOVERING:
    case v1::JOB_STATE_PAUSED:
    case v1::JOB_STATE_CANCELLED:
      return Style::kWarn;
    default:
      return Style::kPlain;
  }
}

// The number of steps that are done. This generation may not have done one yet.
std::int64_t StepsDone(const WatchState& state) {
  return std::max(state.step ? state.step->step() : 0, state.job.resumed_step());
}

class Renderer {
 public:
  Renderer(const WatchState& state, const Screen& screen) : state_(state), screen_(screen) {}

  std::vector<std::string> Render() {
    const Lines top = Top(), bottom = Bottom();
    const int left = screen_.rows - static_cast<int>(top.size() + bottom.size());
    Lines stages = Stages(), split = Split();
    // Each section that is shown has one line for its title.
    const auto fits = [&](int curve_rows) {
      const int curve = curve_rows > 0 && !state_.losses.empty() ? curve_rows + 1 : 0;
      return static_cast<int>(stages.size() + split.size()) + curve <= left;
    };
    if (!fits(kMinCurveRows)) split = ShortSplit();
    const int curve_rows =
        fits(kMinCurveRows)
            ? std::min(kMaxCurveRows, left - static_cast<int>(stages.size() + split.size()) - 1)
            : 0;
    if (!fits(0)) CutStages(stages, left - static_cast<int>(split.size()));
    Lines all = top;
    for (const Lines& part : {Curve(curve_rows), split, stages, bottom})
      all.insert(all.end(), part.begin(), part.end());
    if (static_cast<int>(all.size()) > screen_.rows) all.resize(std::max(0, screen_.rows));
    std::vector<std::string> text;
    for (const StyledLine& line : all) text.push_back(line.Text(screen_.columns, screen_.color));
    return text;
  }

 private:
  // Puts items beside each other, as many in a line as there is room for.
  Lines Flow(const std::vector<StyledLine>& items) const {
    Lines lines;
    constexpr int kGap = 2;
    for (const StyledLine& item : items) {
      if (!lines.empty() && lines.back().width() + kGap + item.width() <= screen_.columns) {
        lines.back().Append("  ").Append(item);
      } else {
        lines.push_back(item);
      }
    }
    return lines;
  }

  Lines Top() const {
    const v1::Job& job = state_.job;
    std::vector<StyledLine> head = {StyledLine(Printable(job.name()), Style::kBold),
                                    StyledLine(StateName(job.state()), StyleOf(job.state()))};
    if (!job.schedule().empty())
      head.emplace_back(absl::StrCat(job.schedule(), " on ", RanksText(job)));
    if (job.generation() > 1) head.emplace_back(absl::StrCat("generation ", job.generation()));
    Lines lines = Flow(head);
    lines.push_back(Progress());
    for (StyledLine& line : Flow(Numbers())) lines.push_back(std::move(line));
    return lines;
  }

  StyledLine Progress() const {
    const std::int64_t done = StepsDone(state_);
    const std::int64_t steps = std::max<std::int64_t>(std::max(state_.job.steps(), done), 1);
    const double share = static_cast<double>(done) / static_cast<double>(steps);
    std::string text = absl::StrCat(done, "/", steps, " ", FormatPercent(share));
    if (state_.smooth_step_seconds > 0 && done < steps) {
      absl::StrAppend(
          &text, "  ETA ",
          FormatSeconds(static_cast<double>(steps - done) * state_.smooth_step_seconds));
    }
    StyledLine line;
    const int width = std::min(kMaxBar, screen_.columns - WidthOf(text) - 1);
    const std::string bar = BarOf(share, width, screen_.unicode);
    if (!bar.empty()) line.Append(bar, Style::kAccent).Append(" ");
    return line.Append(text);
  }

  std::vector<StyledLine> Numbers() const {
    std::vector<StyledLine> items;
    if (!state_.step) return items;
    const v1::StepReport& step = *state_.step;
    items.emplace_back(absl::StrFormat("loss %.4f", PlainNan(step.loss())), Style::kBold);
    if (state_.validation_loss)
      items.emplace_back(absl::StrFormat("validation %.4f", PlainNan(*state_.validation_loss)));
    items.emplace_back(absl::StrFormat("grad_norm %.3g", PlainNan(step.grad_norm())));
    items.emplace_back(absl::StrFormat("lr %.3g", step.learning_rate()));
    items.emplace_back(absl::StrCat(FormatCount(step.tokens_per_second()), " tokens/s"));
    items.emplace_back(absl::StrCat(FormatSeconds(step.step_seconds()), " a step"));
    items.emplace_back(absl::StrCat("bubble ", FormatPercent(step.bubble_fraction()),
                                    " (predicted ",
                                    FormatPercent(state_.job.predicted_bubble_fraction()), ")"));
    return items;
  }

  // plot_rows: rows of the curve, without the line of steps below it; 0: no curve.
  Lines Curve(int plot_rows) const {
    if (plot_rows < kMinCurveRows) return {};
    const int gutter = screen_.columns < 40 ? 0 : 10;
    const auto picture = state_.losses.Draw(
        {.columns = screen_.columns - gutter, .rows = plot_rows, .unicode = screen_.unicode});
    if (!picture) return {};
    Lines lines;
    for (std::size_t i = 0; i < picture->rows.size(); ++i) {
      StyledLine line;
      const bool labelled = gutter > 0 && (i == 0 || i + 1 == picture->rows.size());
      if (labelled) {
        line.Append(absl::StrFormat("%9.4g", i == 0 ? picture->top : picture->bottom), Style::kDim);
      }
      lines.push_back(line.PadTo(gutter).Append(picture->rows[i], Style::kAccent));
    }
    const std::string last = absl::StrCat("step ", state_.losses.last_step());
    StyledLine axis;
    axis.PadTo(gutter).Append(
        absl::StrCat(gutter > 0 ? "loss from step " : "", state_.losses.first_step()), Style::kDim);
    if (axis.width() + 2 + WidthOf(last) <= screen_.columns)
      axis.PadTo(screen_.columns - WidthOf(last)).Append(last, Style::kDim);
    lines.push_back(std::move(axis));
    return lines;
  }

  // The names and the order of common/explain.
  std::array<std::pair<const char*, double>, 7> Parts() const {
    const v1::StepSplit& split = *state_.split;
    return {{{"compute", split.compute()},
             {"imbalance", split.imbalance()},
             {"schedule", split.schedule()},
             {"communication", split.communication()},
             {"data", split.data()},
             {"sync", split.sync()},
             {"runtime", split.runtime()}}};
  }
  double ShareOf(double seconds) const {
    return state_.split->step_seconds() > 0 ? seconds / state_.split->step_seconds() : 0;
  }

  Lines Split() const {
    if (!state_.split) return {};
    Lines lines = {StyledLine(absl::StrCat("where the time went in step ", state_.split->step(),
                                           " (", FormatSeconds(state_.split->step_seconds()), ")"),
                              Style::kDim)};
    for (const auto& [name, seconds] : Parts()) {
      const double share = ShareOf(seconds);
      const bool work = std::string_view(name) == "compute";
      StyledLine line(absl::StrFormat("%-13s %6s", name, FormatPercent(share)));
      const int width = std::min(kMaxBar, screen_.columns - line.width() - 1);
      lines.push_back(line.Append(" ").Append(BarOf(share, width, screen_.unicode),
                                              work ? Style::kGood : Style::kWarn));
    }
    return lines;
  }

  // Returns the same in one line, the largest part first.
  Lines ShortSplit() const {
    if (!state_.split) return {};
    auto parts = Parts();
    std::ranges::stable_sort(parts, std::ranges::greater{}, [](const auto& p) { return p.second; });
    return {StyledLine(absl::StrJoin(parts, " ", [&](std::string* out, const auto& part) {
      absl::StrAppend(out, part.first, " ", FormatPercent(ShareOf(part.second)));
    }))};
  }

  // Returns a line for each pp rank: its stages, its workers, and how busy it was.
  Lines Stages() const {
    std::map<int, std::vector<int>> stages;  // by pp rank
    for (const v1::StageAssignment& stage : state_.job.stages())
      stages[stage.pp_rank()].push_back(stage.stage());
    if (stages.empty() || state_.job.ranks_size() == 0) return {};
    Lines lines = {StyledLine("busy by stage, its workers, and the bubble", Style::kDim)};
    std::vector<StyledLine> labels;
    int label_width = 0;
    for (const auto& [pp_rank, held] : stages) {
      StyledLine label(
          absl::StrCat(held.size() == 1 ? "stage " : "stages ", absl::StrJoin(held, ","), " "));
      AppendWorkers(label, pp_rank, static_cast<int>(stages.size()));
      label_width = std::max(label_width, label.width());
      labels.push_back(std::move(label));
    }
    label_width = std::min(label_width, screen_.columns / 2);
    std::size_t i = 0;
    for (const auto& [pp_rank, held] : stages)
      lines.push_back(StageLine(std::move(labels[i++]), label_width, pp_rank));
    return lines;
  }

  StyledLine StageLine(StyledLine label, int label_width, int pp_rank) const {
    if (!state_.step || pp_rank >= state_.step->bubble_by_pp_rank_size()) return label;
    const double bubble = state_.step->bubble_by_pp_rank(pp_rank);
    const std::string busy = absl::StrFormat(" %6s", FormatPercent(1 - bubble));
    const std::string rest = absl::StrCat("  bubble ", FormatPercent(bubble));
    label.PadTo(label_width);
    const auto room = [&](int beside) { return screen_.columns - label.width() - 1 - beside; };
    const bool wide = room(WidthOf(busy) + WidthOf(rest)) >= kMinBar;
    const int width = std::min(kMaxBar, room(wide ? WidthOf(busy) + WidthOf(rest) : WidthOf(busy)));
    return label.Append(" ")
        .Append(BarOf(1 - bubble, width, screen_.unicode), Style::kGood)
        .Append(busy)
        .Append(wide ? rest : "");
  }

  // Returns the workers of all replicas, beginning with those that are not well, as many as half a
  // line holds, so that there is room for the bar.
  void AppendWorkers(StyledLine& line, int pp_rank, int pp_size) const {
    const int replicas = std::max(1, state_.job.ranks_size() / pp_size);
    std::vector<StyledLine> workers;
    std::ptrdiff_t num_unwell = 0;
    for (const v1::BoundRank& rank : state_.job.ranks()) {
      if (rank.rank() / replicas != pp_rank) continue;
      const StyledLine trouble = TroubleOf(rank.worker());
      StyledLine worker(Printable(rank.worker()));
      worker.Append(trouble);
      const bool well = trouble.width() == 0;
      workers.insert(well ? workers.end() : workers.begin() + num_unwell++, std::move(worker));
    }
    std::size_t shown = 0;
    for (const StyledLine& worker : workers) {
      if (shown > 0 && line.width() + 1 + worker.width() > screen_.columns / 2) break;
      line.Append(shown++ > 0 ? "," : "").Append(worker);
    }
    if (shown < workers.size()) line.Append(absl::StrCat(" +", workers.size() - shown));
  }

  // Returns for example " LOST". Empty: the worker is well, or its state is not known.
  StyledLine TroubleOf(const std::string& name) const {
    StyledLine trouble;
    const auto worker =
        std::ranges::find(state_.workers, name, [](const auto& w) { return w.name(); });
    if (worker == state_.workers.end()) return trouble;
    if (worker->state() == v1::WORKER_STATE_LOST) trouble.Append(" LOST", Style::kBad);
    if (worker->state() == v1::WORKER_STATE_AWAY) trouble.Append(" AWAY", Style::kWarn);
    if (worker->leaving()) trouble.Append(" LEAVING", Style::kWarn);
    if (worker->drained()) trouble.Append(" DRAINED", Style::kWarn);
    return trouble;
  }

  static void CutStages(Lines& stages, int room) {
    if (static_cast<int>(stages.size()) <= room) return;
    if (room < 3)
      return stages.clear();  // lines for a title, a stage, and the number of further ones
    const std::size_t hidden = stages.size() - room + 1;
    stages.resize(room - 1);
    stages.emplace_back(absl::StrCat("... ", hidden, " more"), Style::kDim);
  }

  Lines Bottom() const {
    const v1::Job& job = state_.job;
    Lines lines;
    if (const std::string workers = OtherWorkers(); !workers.empty()) lines.emplace_back(workers);
    if (job.has_checkpoint())
      lines.emplace_back(absl::StrCat("checkpoint: step ", job.checkpoint().step()));
    if (job.warnings_size() > 0) {
      lines.emplace_back(
          absl::StrCat("warning: ", Printable(job.warnings(job.warnings_size() - 1))),
          Style::kWarn);
    }
    if (!job.reason().empty() && job.state() != v1::JOB_STATE_RUNNING)
      lines.emplace_back(Printable(job.reason()), StyleOf(job.state()));
    if (state_.notice.empty()) {
      lines.emplace_back(kFooter, Style::kDim);
    } else {
      lines.emplace_back(Printable(state_.notice), Style::kWarn);
    }
    return lines;
  }

  // "workers: 4 busy, 1 idle, 1 lost"
  std::string OtherWorkers() const {
    std::map<v1::WorkerState, int> count;
    for (const v1::Worker& worker : state_.workers) ++count[worker.state()];
    std::vector<std::string> words;
    const std::pair<v1::WorkerState, const char*> kNames[] = {{v1::WORKER_STATE_BUSY, "busy"},
                                                              {v1::WORKER_STATE_IDLE, "idle"},
                                                              {v1::WORKER_STATE_AWAY, "away"},
                                                              {v1::WORKER_STATE_LOST, "lost"}};
    for (const auto& [worker_state, name] : kNames) {
      if (count[worker_state] > 0) words.push_back(absl::StrCat(count[worker_state], " ", name));
    }
    return words.empty() ? "" : absl::StrCat("workers: ", absl::StrJoin(words, ", "));
  }

  const WatchState& state_;
  const Screen& screen_;
};

}  // namespace

void WatchState::TakeStep(const v1::StepReport& report) {
  step = report;
  losses.Add(report.step(), report.loss());
  if (report.has_validation_loss()) validation_loss = report.validation_loss();
  smooth_step_seconds = Smoothed(smooth_step_seconds, report.step_seconds());
}

std::vector<std::string> RenderWatch(const WatchState& state, const Screen& screen) {
  return Renderer(state, screen).Render();
}

}  // namespace takt::cli
