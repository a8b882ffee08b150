// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/schedule/render.h"
#include "common/schedule/svg_parts.h"

namespace takt::schedule {
namespace {

// Pixels.
constexpr double kLeft = 60, kTop = 84, kRight = 150, kAxisHeight = 34;
constexpr double kRowHeight = 24, kCurveHeight = 16, kRowGap = 10;
constexpr double kNarrowestTime = 620, kWidestTime = 24000;  // beyond, labels are left to tooltips
constexpr double kComfortableTime = 1500;  // beyond, labels are microbatch numbers without letters
constexpr double kCharWidth = 6.2;         // of a label, at its font size of 10

constexpr std::string_view kPhases[3][2] = {
    {"warm-up", "#fbe9c6"}, {"steady", "#dcefdc"}, {"cool-down", "#dde3f3"}};

bool EndsFlight(ActionKind kind) {
  return kind == ActionKind::kWeightGrad || kind == ActionKind::kBackward;
}

// Returns whether an action is of the step before, where steps overlap: it ends here before it
// begins here.
int CarriedOver(const std::vector<TimedAction>& row) {
  std::set<std::pair<StageId, MicrobatchId>> begun;
  int carried = 0;
  for (const TimedAction& timed : row) {
    const std::pair cell(timed.action.stage, timed.action.microbatch);
    if (timed.action.kind == ActionKind::kForward) begun.insert(cell);
    if (EndsFlight(timed.action.kind) && begun.count(cell) == 0) ++carried;
  }
  return carried;
}

// The picture tells this about one rank.
struct RankFigures {
  double busy = 0;
  double first_backward = 0, last_forward = 0;  // where warm-up ends and cool-down begins
  int peak_in_flight = 0;
};

RankFigures FiguresOf(const std::vector<TimedAction>& row, double makespan) {
  RankFigures figures{.first_backward = makespan};
  int in_flight = CarriedOver(row);
  bool second_of_pair = false;
  for (const TimedAction& timed : row) {
    if (!second_of_pair) figures.busy += timed.end - timed.start;
    second_of_pair = timed.action.joins_next;
    if (timed.action.kind == ActionKind::kForward) {
      figures.peak_in_flight = std::max(figures.peak_in_flight, ++in_flight);
      figures.last_forward = std::max(figures.last_forward, timed.end);
    } else if (!IsOfVocabulary(timed.action.kind)) {
      figures.first_backward = std::min(figures.first_backward, timed.start);
    }
    if (EndsFlight(timed.action.kind)) --in_flight;
  }
  figures.last_forward = std::max(figures.last_forward, figures.first_backward);
  return figures;
}

class Drawing {
 public:
  explicit Drawing(const Timeline& timeline)
      : timeline_(timeline), num_ranks_(static_cast<int>(timeline.ranks.size())) {
    double shortest = timeline.makespan;
    std::size_t longest_label = 2;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      for (const TimedAction& timed : timeline.ranks[rank]) {
        if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
        longest_label = std::max(longest_label, Label(timed.action).size());
        num_chunks_ = std::max(num_chunks_, Chunk(timed.action, rank) + 1);
        two_ways_ = two_ways_ &&
                    (IsOfVocabulary(timed.action.kind) || timed.action.stage.value() < num_ranks_);
      }
      figures_.push_back(FiguresOf(timeline.ranks[rank], timeline.makespan));
      highest_peak_ = std::max(highest_peak_, figures_.back().peak_in_flight);
    }
    const double makespan = timeline.makespan > 0 ? timeline.makespan : 1;
    const auto wanted = [&](std::size_t label_size) {
      return shortest > 0 ? (static_cast<double>(label_size) * kCharWidth + 4) / shortest : 1;
    };
    letters_ = wanted(longest_label) * makespan <= kComfortableTime;
    scale_ = wanted(letters_ ? longest_label : longest_label - 1);
    scale_ = std::max(std::min(scale_, kWidestTime / makespan), kNarrowestTime / makespan);
    width_ = kLeft + makespan * scale_ + kRight;
    height_ = kTop + num_ranks_ * (kRowHeight + kCurveHeight + kRowGap) + kAxisHeight;
  }

  std::string Draw() {
    Header();
    Legend();
    for (int rank = 0; rank < num_ranks_; ++rank) Row(rank);
    Axis();
    absl::StrAppend(&svg_, "</svg>\n");
    return std::move(svg_);
  }

 private:
  std::string Label(const Action& action) const {
    const char letter[] = {Letter(action.kind), '\0'};
    return letters_ ? absl::StrCat(letter, action.microbatch.value())
                    : absl::StrCat(action.microbatch.value());
  }

  // Returns which stage of its rank it is: by number, or in bidirectional pipelines 1 for the one
  // of the way up.
  int Chunk(const Action& action, int rank) const {
    const int stage = action.stage.value();
    if (IsOfVocabulary(action.kind)) return 0;
    if (stage >= num_ranks_) return stage / num_ranks_;
    return stage == rank ? 0 : 1;
  }

  bool Shows(ActionKind kind) const {
    return std::any_of(timeline_.ranks.begin(), timeline_.ranks.end(), [&](const auto& row) {
      return std::any_of(row.begin(), row.end(),
                         [&](const TimedAction& timed) { return timed.action.kind == kind; });
    });
  }

  void Header() {
    absl::StrAppendFormat(
        &svg_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
        "%.0f %.0f\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"10\">\n<style>",
        width_, height_, width_, height_);
    for (const Paint& paint : Paints()) {
      for (int chunk = 0; Shows(paint.kind) && chunk < num_chunks_; ++chunk) {
        absl::StrAppendFormat(&svg_, ".%c%d{fill:%s}", Letter(paint.kind), chunk,
                              Fill(paint, chunk, num_chunks_));
      }
    }
    absl::StrAppend(
        &svg_,
        "\n.a rect{stroke:#555;stroke-width:.6}.a text{text-anchor:middle}"
        ".s{font-size:11px}.g{fill:#666}</style>\n"
        "<defs><pattern id=\"idle\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" fill=\"#f4f4f4\"/>"
        "<rect width=\"1.2\" height=\"7\" fill=\"#d0d0d0\"/></pattern></defs>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"12\" y=\"22\" font-size=\"13\" font-weight=\"bold\">",
        Escape(timeline_.title), "</text>\n");
  }

  // The legend begins with what the rows show, and the curves under them follow.
  void Legend() {
    double x = 12;
    for (const Paint& paint : Paints()) {
      if (Shows(paint.kind)) AppendLegend(x, 33, 13, Fill(paint, 0, 1), paint.name, svg_);
    }
    AppendLegend(x, 33, 13, "url(#idle)", "idle", svg_);
    absl::StrAppendFormat(&svg_, "<text class=\"s\" x=\"%s\" y=\"43.5\">%s%s</text>\n", Number(x),
                          letters_ ? "" : "number: microbatch ", DarkerMeans());
    x = 12;
    for (const auto& [name, fill] : kPhases) AppendLegend(x, 52, 13, fill, name, svg_);
    absl::StrAppendFormat(&svg_,
                          "<path d=\"M%s 63v-4h5v-4h6v8z\" fill=\"#4a5a78\" fill-opacity=\".45\"/>"
                          "<text class=\"s\" x=\"%s\" y=\"62.5\">in flight, up to %d</text>\n",
                          Number(x), Number(x + 16), highest_peak_);
    absl::StrAppendFormat(&svg_,
                          "<text class=\"s g\" x=\"%s\" y=\"78\">idle</text>"
                          "<text class=\"s g\" x=\"%s\" y=\"78\">peak</text>\n",
                          Number(EndOfTime() + 12), Number(EndOfTime() + 112));
  }

  std::string_view DarkerMeans() const {
    if (num_chunks_ == 1) return "";
    return two_ways_ ? "darker: the way up" : "darker: later chunk";
  }

  double EndOfTime() const { return kLeft + timeline_.makespan * scale_; }

  void Row(int rank) {
    const double y = kTop + rank * (kRowHeight + kCurveHeight + kRowGap);
    const RankFigures& figures = figures_[rank];
    const double idle = timeline_.makespan - figures.busy;
    const double share = timeline_.makespan > 0 ? 100 * idle / timeline_.makespan : 0;
    absl::StrAppendFormat(&svg_,
                          "<text class=\"s\" x=\"12\" y=\"%s\">rank %d</text>"
                          "<text class=\"s\" x=\"%s\" y=\"%s\">%.4g (%.1f%%)</text>"
                          "<text class=\"s\" x=\"%s\" y=\"%s\">%d</text>\n"
                          "<g class=\"a\" transform=\"translate(%s %s)\">\n"
                          "<path d=\"M0 0h%sv%sh-%sz\" fill=\"url(#idle)\"/>\n",
                          Number(y + 16), rank, Number(EndOfTime() + 12), Number(y + 16), idle,
                          share, Number(EndOfTime() + 112), Number(y + 16), figures.peak_in_flight,
                          Number(kLeft), Number(y), Number(timeline_.makespan * scale_),
                          Number(kRowHeight), Number(timeline_.makespan * scale_));
    bool lower_half = false;
    for (const TimedAction& timed : timeline_.ranks[rank]) {
      if (timed.action.joins_next) {
        Box(timed, rank, 0, kRowHeight / 2);
      } else if (lower_half) {
        Box(timed, rank, kRowHeight / 2, kRowHeight / 2);
      } else {
        Box(timed, rank, 0, kRowHeight);
      }
      lower_half = timed.action.joins_next;
    }
    Phases(figures);
    Curve(timeline_.ranks[rank]);
    absl::StrAppend(&svg_, "</g>\n");
  }

  void Box(const TimedAction& timed, int rank, double y, double height) {
    const std::string label = Label(timed.action);
    const double x = timed.start * scale_;
    const double width = (timed.end - timed.start) * scale_;
    absl::StrAppendFormat(
        &svg_,
        "<rect class=\"%c%d\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>%s: %g to "
        "%g</title></rect>",
        Letter(timed.action.kind), Chunk(timed.action, rank), Number(x), Number(y), Number(width),
        Number(height), timed.action.ToString(), timed.start, timed.end);
    if (width >= static_cast<double>(label.size()) * kCharWidth) {
      absl::StrAppendFormat(&svg_, "<text x=\"%s\" y=\"%s\">%s</text>", Number(x + width / 2),
                            Number(y + height / 2 + 3.5), label);
    }
    svg_ += '\n';
  }

  // Draws the background of the curve: warm-up ends at the first backward, cool-down begins after
  // the last forward.
  void Phases(const RankFigures& figures) {
    const double ends[] = {0, figures.first_backward, figures.last_forward, timeline_.makespan};
    for (int phase = 0; phase < 3; ++phase) {
      const double width = (ends[phase + 1] - ends[phase]) * scale_;
      if (width <= 0) continue;
      absl::StrAppendFormat(&svg_, "<path d=\"M%s %sh%sv%sh-%sz\" fill=\"%s\"/>\n",
                            Number(ends[phase] * scale_), Number(kRowHeight), Number(width),
                            Number(kCurveHeight), Number(width), std::string(kPhases[phase][1]));
    }
  }

  // Draws the microbatch-chunks in flight over time, each from the start of F to the end of W or B.
  void Curve(const std::vector<TimedAction>& row) {
    const double bottom = kRowHeight + kCurveHeight;
    const double step = (kCurveHeight - 1) / std::max(1, highest_peak_);
    int in_flight = CarriedOver(row);
    std::string path = absl::StrCat("M0 ", Number(bottom));
    if (in_flight > 0) absl::StrAppend(&path, "V", Number(bottom - in_flight * step));
    const auto turn = [&](double time, int change) {
      in_flight += change;
      absl::StrAppend(&path, "H", Number(time * scale_), "V", Number(bottom - in_flight * step));
    };
    for (const TimedAction& timed : row) {
      if (timed.action.kind == ActionKind::kForward) turn(timed.start, 1);
      if (EndsFlight(timed.action.kind)) turn(timed.end, -1);
    }
    absl::StrAppend(&svg_, "<path d=\"", path, "H", Number(timeline_.makespan * scale_), "V",
                    Number(bottom), "z\" fill=\"#4a5a78\" fill-opacity=\".45\"/>\n");
  }

  void Axis() {
    const double y = height_ - kAxisHeight + 4;
    absl::StrAppendFormat(&svg_, "<path d=\"M%s %sH%s\" stroke=\"#333\"/>\n", Number(kLeft),
                          Number(y), Number(EndOfTime()));
    const double step = TickStep(scale_);
    for (int i = 0; i * step <= timeline_.makespan * (1 + 1e-9); ++i) {
      const std::string x = Number(kLeft + i * step * scale_);
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%s %sv5\" stroke=\"#333\"/>"
                            "<text x=\"%s\" y=\"%s\" text-anchor=\"middle\">%g</text>\n",
                            x, Number(y), x, Number(y + 17), i * step);
    }
  }

  const Timeline& timeline_;
  const int num_ranks_;
  int num_chunks_ = 1;
  bool two_ways_ =
      true;  // no more stages than ranks: a second one of a rank is of another pipeline
  int highest_peak_ = 0;
  bool letters_ = true;
  std::vector<RankFigures> figures_;
  double scale_ = 1;  // pixels per unit of time
  double width_ = 0, height_ = 0;
  std::string svg_;
};

}  // namespace

std::string RenderSvg(const Timeline& timeline) { return Drawing(timeline).Draw(); }

}  // namespace takt::schedule
