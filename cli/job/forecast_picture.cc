// SPDX-License-Identifier: Apache-2.0
#include "cli/job/forecast_picture.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/text.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "common/program/program.h"
#include "common/schedule/svg_parts.h"
#include "common/sim/executed.h"
#include "common/sim/simulate.h"
#include "common/sim/timeline.h"

namespace takt::cli {
namespace {

using schedule::ActionKind;
using schedule::Number;
using schedule::TimedAction;

// Pixels.
constexpr double kNamesWidth = 150;
constexpr double kTop = 8, kRowHeight = 22, kChartHeight = 40, kChartGap = 3, kRowGap = 16;
constexpr double kBreakHeight = 28, kAxisHeight = 26, kLeft = 20, kRight = 40;
constexpr double kNarrowestTime = 820, kWidestTime = 12000;
constexpr double kUsualWidth = 20;  // of a box
constexpr double kCharWidth = 6.2;  // of a label, at its font size of 10

// A picture of many actions shows so many ranks at least.
constexpr std::size_t kFewestRanks = 4;
// The curves of memory have at most so many points in all.
constexpr int kMostPoints = 16'000;

constexpr std::string_view kSeveral = "#c4c4c4";

// Times are shown in one unit.
struct TimeUnit {
  const char* name;
  double per_second;
};

TimeUnit UnitOf(double makespan) {
  if (makespan < 10e-3) return {"us", 1e6};
  return makespan < 10 ? TimeUnit{"ms", 1e3} : TimeUnit{"s", 1};
}

// One action of a row, or neighbours that are too narrow to tell apart.
struct Box {
  schedule::Action action;  // the first one
  double start = 0, end = 0;
  double y = 0, height = kRowHeight;
  int count = 1;
};

// The halves of a pair that runs as one stand above each other, as in all pictures.
std::vector<Box> BoxesOf(const std::vector<TimedAction>& row) {
  std::vector<Box> boxes;
  bool is_lower = false;
  for (const TimedAction& timed : row) {
    const bool is_upper = timed.action.joins_next;
    boxes.push_back({.action = timed.action, .start = timed.start, .end = timed.end});
    if (is_lower || is_upper) boxes.back().height = kRowHeight / 2;
    if (is_lower) boxes.back().y = kRowHeight / 2;
    is_lower = is_upper;
  }
  return boxes;
}

// Makes one box of those that follow each other within `length`. Of any four that are left, the
// last begins at least that after the first.
std::vector<Box> Join(const std::vector<Box>& boxes, double length) {
  std::vector<Box> joined;
  for (const Box& box : boxes) {
    if (joined.empty() || box.end - joined.back().start >= length) {
      joined.push_back(box);
      continue;
    }
    Box& last = joined.back();
    last.end = std::max(last.end, box.end);
    last.y = 0;
    last.height = kRowHeight;
    last.count += box.count;
  }
  return joined;
}

// Returns all ranks, or, if they have too many actions, the first and the last ones.
std::vector<int> RanksToDraw(const schedule::Timeline& timeline) {
  std::size_t all = 0, longest = 1;
  for (const auto& row : timeline.ranks) {
    all += row.size();
    longest = std::max(longest, row.size());
  }
  const std::size_t num_ranks = timeline.ranks.size();
  std::size_t most = num_ranks;
  if (all > kMostPictureBoxes)
    most = std::min(num_ranks, std::max(kFewestRanks, kMostPictureBoxes / longest));
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (rank < (most + 1) / 2 || rank >= num_ranks - most / 2)
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// A chart says this about one rank.
struct RankMemory {
  std::int64_t base = 0;       // all but stash and messages
  std::int64_t peak = 0;       // with what stash and messages hold at most
  std::int64_t allocated = 0;  // with all slots of both
};

class Drawing {
 public:
  // programs: the plan's as they are executed, which the report is of.
  Drawing(const plan::Plan& plan, const std::vector<program::Program>& programs,
          const sim::Report& report, std::int64_t worker_memory_bytes)
      : plan_(plan),
        report_(report),
        limit_bytes_(worker_memory_bytes),
        timeline_(sim::MakeTimeline(programs, report)),
        ranks_(RanksToDraw(timeline_)),
        makespan_(std::max(report.makespan, 1e-12)),
        unit_(UnitOf(makespan_)) {
    MakeBoxes();
    MakeScales();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (IsAfterBreak(i)) height_ += kBreakHeight;
      tops_.push_back(height_);
      height_ += kRowHeight + kChartGap + kChartHeight + kRowGap;
    }
    height_ += kAxisHeight;
  }

  std::string Draw() {
    Legend();
    html_ +=
        "<div class=\"picture\" tabindex=\"0\" role=\"region\" aria-label=\"Predicted step\">\n";
    Names();
    const double width = kLeft + width_ + kRight;
    absl::StrAppendFormat(&html_,
                          "<svg role=\"img\" aria-label=\"What each rank computes and holds over "
                          "time\" width=\"%.0f\" height=\"%.0f\" viewBox=\"%s 0 %.0f %.0f\">\n",
                          width, height_, Number(-kLeft), width, height_);
    Axis();
    for (std::size_t i = 0; i < ranks_.size(); ++i) Row(i);
    html_ += "</svg>\n</div>\n";
    Remarks();
    return std::move(html_);
  }

 private:
  void MakeBoxes() {
    std::size_t all = 0;
    for (const int rank : ranks_) {
      boxes_.push_back(BoxesOf(timeline_.ranks[rank]));
      all += boxes_.back().size();
    }
    if (all <= kMostPictureBoxes) return;
    const auto boxes_of_rank = static_cast<double>(kMostPictureBoxes / ranks_.size());
    for (std::vector<Box>& row : boxes_) row = Join(row, 4 * makespan_ / boxes_of_rank);
  }

  // The middle one of all boxes gets room for its label.
  void MakeScales() {
    std::vector<double> lengths;
    for (const std::vector<Box>& row : boxes_) {
      for (const Box& box : row) lengths.push_back(box.end - box.start);
    }
    double usual = 0;
    if (!lengths.empty()) {
      const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
      std::nth_element(lengths.begin(), middle, lengths.end());
      usual = *middle;
    }
    width_ = kNarrowestTime;
    if (usual > 0) width_ = std::clamp(makespan_ / usual * kUsualWidth, width_, kWidestTime);
    scale_ = width_ / makespan_;
    num_parts_ =
        std::clamp(static_cast<int>(width_), 1, kMostPoints / static_cast<int>(ranks_.size()));
    for (const MemoryBytes& bytes : plan_.memory)
      chart_bytes_ = std::max(chart_bytes_, bytes.total());
    if (limit_bytes_ / 4 <= chart_bytes_) chart_bytes_ = std::max(chart_bytes_, limit_bytes_);
  }

  bool IsAfterBreak(std::size_t i) const { return i > 0 && ranks_[i] != ranks_[i - 1] + 1; }
  double X(double seconds) const { return seconds * scale_; }
  // In a rank's group.
  double Y(std::int64_t bytes) const {
    return kRowHeight + kChartGap +
           kChartHeight * (1 - static_cast<double>(bytes) / static_cast<double>(chart_bytes_));
  }
  static std::string Bytes(std::int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

  RankMemory MemoryOf(int rank) const {
    const MemoryBytes& planned = plan_.memory[rank];
    RankMemory memory{.allocated = planned.total()};
    memory.base = memory.allocated - planned[MemoryKind::kStash] - planned[MemoryKind::kMessages];
    for (const sim::HeldBytes& held : report_.held[rank])
      memory.peak = std::max(memory.peak, memory.base + held.stash + held.buffers);
    return memory;
  }

  void AddSwatch(std::string_view style, std::string_view text) {
    absl::StrAppendFormat(&html_, "<span><i %s></i>%s</span>\n", style, text);
  }

  void Legend() {
    std::set<ActionKind> kinds;
    bool any_several = false;
    for (const std::vector<Box>& row : boxes_) {
      for (const Box& box : row) {
        kinds.insert(box.action.kind);
        any_several |= box.count > 1;
      }
    }
    html_ += "<p class=\"legend\">\n";
    for (const schedule::Paint& paint : schedule::Paints()) {
      if (kinds.count(paint.kind) == 0) continue;
      AddSwatch(absl::StrCat("style=\"background:", schedule::Fill(paint, 0, 1), "\""), paint.name);
    }
    if (std::ssize(plan_.partition) > plan_.mesh.pp_size) {
      const schedule::Paint& forward = schedule::PaintOf(ActionKind::kForward);
      AddSwatch(absl::StrFormat("style=\"background:linear-gradient(90deg,%s 50%%,%s 50%%)\"",
                                schedule::Fill(forward, 0, 2), schedule::Fill(forward, 1, 2)),
                "the rank's stages, the first one palest");
    }
    if (any_several) {
      AddSwatch(absl::StrFormat("style=\"background:%s\"", kSeveral),
                "several and what is idle between them, too narrow to tell apart");
    }
    AddSwatch("class=\"idle\"", "idle");
    AddSwatch("class=\"messages\"", "memory: messages");
    AddSwatch("class=\"stash\"", "activations for backward passes");
    AddSwatch("class=\"base\"", "parameters, gradients, optimizer and all else");
    AddSwatch("class=\"allocated\"", "allocated");
    if (ShowsLimit()) AddSwatch("class=\"limit\"", "what a worker has");
    html_ += "</p>\n";
  }

  bool ShowsLimit() const { return limit_bytes_ > 0 && limit_bytes_ <= chart_bytes_; }

  // The names of rows stay in view when the picture is moved.
  void Names() {
    absl::StrAppendFormat(&html_, "<svg class=\"names\" width=\"%.0f\" height=\"%.0f\">\n",
                          kNamesWidth, height_);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const int rank = ranks_[i];
      if (IsAfterBreak(i)) {
        absl::StrAppendFormat(&html_, "<text y=\"%s\">ranks %d to %d: not drawn</text>\n",
                              Number(tops_[i] - kBreakHeight / 2), ranks_[i - 1] + 1, rank - 1);
      }
      const double chart = tops_[i] + kRowHeight + kChartGap;
      absl::StrAppendFormat(&html_,
                            "<text y=\"%s\"><tspan class=\"rank\">rank %d</tspan> %s idle</text>"
                            "<text y=\"%s\">up to %s</text><text y=\"%s\">of %s</text>\n",
                            Number(tops_[i] + 15), rank,
                            FormatPercent(std::max(0.0, 1 - report_.ranks[rank].busy / makespan_)),
                            Number(chart + 17), Bytes(MemoryOf(rank).peak), Number(chart + 32),
                            Bytes(limit_bytes_ > 0 ? limit_bytes_ : plan_.memory[rank].total()));
    }
    html_ += "</svg>\n";
  }

  void Axis() {
    const double bottom = height_ - kAxisHeight;
    const double per_unit = scale_ / unit_.per_second;
    const double step = schedule::TickStep(per_unit);
    const double end = makespan_ * unit_.per_second * (1 + 1e-9);
    for (int i = 0; i * step <= end; ++i) {
      const std::string x = Number(i * step * per_unit);
      absl::StrAppendFormat(&html_,
                            "<path class=\"tick\" d=\"M%s %sV%s\"/><text x=\"%s\" y=\"%s\">%g%s"
                            "</text>\n",
                            x, Number(kTop), Number(bottom + 4), x, Number(bottom + 17), i * step,
                            i == 0 ? absl::StrCat(" ", unit_.name) : "");
    }
  }

  void Row(std::size_t i) {
    const int rank = ranks_[i];
    absl::StrAppendFormat(&html_,
                          "<g class=\"row\" transform=\"translate(0 %s)\">\n"
                          "<path class=\"idle\" d=\"M0 0h%sv%sH0z\"/>\n",
                          Number(tops_[i]), Number(width_), Number(kRowHeight));
    const std::set<StageId> held = program::HeldStages(plan_.programs[rank]);
    for (const Box& box : boxes_[i]) AddBox(box, held);
    html_ += "</g>\n";
    Chart(i);
  }

  std::string FillOf(const Box& box, const std::set<StageId>& held) const {
    if (box.count > 1) return std::string(kSeveral);
    if (schedule::IsOfVocabulary(box.action.kind))
      return schedule::Fill(schedule::PaintOf(box.action.kind), 0, 1);
    const auto chunk = std::distance(held.begin(), held.lower_bound(box.action.stage));
    return schedule::Fill(schedule::PaintOf(box.action.kind), static_cast<int>(chunk),
                          static_cast<int>(held.size()));
  }

  void AddBox(const Box& box, const std::set<StageId>& held) {
    const double x = X(box.start), width = X(box.end) - x;
    const std::string several = box.count > 1 ? absl::StrFormat("%d actions from ", box.count) : "";
    absl::StrAppendFormat(
        &html_,
        "<path fill=\"%s\" d=\"M%s %sh%sv%sh-%sz\"><title>%s%s: %.3f to %.3f %s</title></path>",
        FillOf(box, held), Number(x), Number(box.y), Number(width), Number(box.height),
        Number(width), several, box.action.ToString(), box.start * unit_.per_second,
        box.end * unit_.per_second, unit_.name);
    const char letter[] = {schedule::Letter(box.action.kind), '\0'};
    const std::string label = absl::StrCat(letter, box.action.microbatch.value());
    if (box.count == 1 && width >= static_cast<double>(label.size()) * kCharWidth) {
      absl::StrAppendFormat(&html_, "<text x=\"%s\" y=\"%s\">%s</text>", Number(x + width / 2),
                            Number(box.y + box.height / 2 + 3.5), label);
    }
    html_ += '\n';
  }

  void Chart(std::size_t i) {
    const RankMemory memory = MemoryOf(ranks_[i]);
    absl::StrAppendFormat(
        &html_,
        "<g transform=\"translate(0 %s)\"><title>rank %d: up to %s in use of %s allocated; "
        "parameters, gradients, optimizer and all else take %s</title>\n",
        Number(tops_[i]), ranks_[i], Bytes(memory.peak), Bytes(memory.allocated),
        Bytes(memory.base));
    const std::string base =
        absl::StrFormat("M0 %sH%sV%sH0z", Number(Y(0)), Number(width_), Number(Y(memory.base)));
    AddShape("messages", Outline(ranks_[i], memory.base, /*with_buffers=*/true));
    AddShape("stash", Outline(ranks_[i], memory.base, /*with_buffers=*/false));
    AddShape("base", base);
    AddShape("allocated", LineAt(memory.allocated));
    if (ShowsLimit()) AddShape("limit", LineAt(limit_bytes_));
    html_ += "</g>\n";
  }

  void AddShape(std::string_view css_class, std::string_view path) {
    absl::StrAppendFormat(&html_, "<path class=\"%s\" d=\"%s\"/>\n", css_class, path);
  }

  std::string LineAt(std::int64_t bytes) const {
    return absl::StrFormat("M0 %sH%s", Number(Y(bytes)), Number(width_));
  }

  // Returns the outline of what the rank holds over time. Of each part of the time it shows the
  // largest value, so that no peak is lost.
  std::string Outline(int rank, std::int64_t base, bool with_buffers) const {
    const std::vector<sim::HeldBytes>& held = report_.held[rank];
    const auto part_of = [&](double time) {
      return static_cast<int>(std::min(time / makespan_ * num_parts_, num_parts_ - 1.0));
    };
    std::vector<std::int64_t> most(num_parts_, 0);
    for (std::size_t i = 0; i < held.size(); ++i) {
      const int last = i + 1 < held.size() ? part_of(held[i + 1].time) : num_parts_ - 1;
      const std::int64_t bytes = base + held[i].stash + (with_buffers ? held[i].buffers : 0);
      for (int part = part_of(held[i].time); part <= last; ++part)
        most[part] = std::max(most[part], bytes);
    }
    std::string path = absl::StrCat("M0 ", Number(Y(0)));
    for (int part = 0; part < num_parts_; ++part) {
      if (part > 0 && most[part] == most[part - 1]) continue;
      absl::StrAppend(&path, "H", Number(part * width_ / num_parts_), "V", Number(Y(most[part])));
    }
    absl::StrAppend(&path, "H", Number(width_), "V", Number(Y(0)), "z");
    return path;
  }

  void Remarks() {
    absl::StrAppend(&html_, "<p class=\"quiet\">Charts of memory reach from 0 to ",
                    Bytes(chart_bytes_), ".");
    if (limit_bytes_ > chart_bytes_) {
      absl::StrAppend(&html_, " A worker has ", Bytes(limit_bytes_),
                      " for a rank, which is far above.");
    }
    html_ += " A worker allocates everything when it starts; the areas say what is in use.";
    if (plan_.mesh.dp_size > 1) {
      absl::StrAppend(&html_, " Each rank stands for its ", plan_.mesh.dp_size,
                      " data-parallel copies, which do the same.");
    }
    if (std::ranges::any_of(plan_.programs, program::IsAsynchronous)) {
      html_ +=
          " The schedule does not flush: this is the first step, and each later one adds the step "
          "that is predicted.";
    }
    if (OverlapsSteps(plan_)) {
      html_ +=
          " Steps overlap: this is the first one, whose first forwards ran ahead of it, and each "
          "later one adds the step that is predicted.";
    }
    html_ += "</p>\n";
  }

  const plan::Plan& plan_;
  const sim::Report& report_;
  const std::int64_t limit_bytes_;
  const schedule::Timeline timeline_;
  const std::vector<int> ranks_;  // that are drawn
  const double makespan_;
  const TimeUnit unit_;
  std::vector<std::vector<Box>> boxes_;  // by drawn rank
  std::vector<double> tops_;             // by drawn rank
  std::int64_t chart_bytes_ = 1;         // at the upper edge of a chart
  int num_parts_ = 1;                    // of the time, in curves
  double scale_ = 1;                     // pixels per second
  double width_ = 0;                     // of the time
  double height_ = kTop;
  std::string html_;
};

}  // namespace

absl::StatusOr<std::string> DrawStep(const plan::Plan& plan, std::int64_t worker_memory_bytes) {
  const std::vector<program::Program> programs =
      sim::AsExecuted(plan.programs, plan.costs.halves_run_beside).programs;
  ASSIGN_OR_RETURN(const sim::Report report,
                   sim::Simulate(programs, plan.costs, {.follow_memory = true}));
  return Drawing(plan, programs, report, worker_memory_bytes).Draw();
}

}  // namespace takt::cli
