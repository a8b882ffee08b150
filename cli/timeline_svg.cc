// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/text.h"
#include "cli/timeline.h"

namespace takt::cli {
namespace {

using schedule::ActionKind;

constexpr double kRowHeight = 30, kRowGap = 6, kLeft = 70, kTop = 54, kRight = 20, kBottom = 58;
constexpr double kNarrowest = 700, kWidest = 6000;
// Wide enough for a microbatch number in the shortest action.
constexpr double kCellWidth = 22;

struct Kind {
  ActionKind kind;
  const char* color;
  const char* name;
};
// Colours that stay apart for colour-blind readers (Okabe and Ito).
constexpr Kind kKinds[] = {{ActionKind::kForward, "#56b4e9", "F forward"},
                           {ActionKind::kInputGrad, "#e69f00", "I gradient of inputs"},
                           {ActionKind::kWeightGrad, "#009e73", "W gradient of weights"},
                           {ActionKind::kBackward, "#cc79a7", "B both gradients"}};

const char* ColorOf(ActionKind kind) {
  for (const Kind& entry : kKinds) {
    if (entry.kind == kind) return entry.color;
  }
  return "#999999";
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// 1, 2 or 5 times a power of ten, so that about ten ticks fit.
double TickStep(double makespan) {
  const double rough = makespan / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

class SvgWriter {
 public:
  explicit SvgWriter(const Timeline& timeline) : timeline_(timeline) {
    double shortest = timeline.report.makespan;
    for (const auto& rank : timeline.ranks) {
      for (const TimelineCell& cell : rank) {
        if (cell.end > cell.start) shortest = std::min(shortest, cell.end - cell.start);
      }
    }
    const double makespan = std::max(timeline.report.makespan, 1e-300);
    plot_width_ =
        std::clamp(makespan / std::max(shortest, 1e-300) * kCellWidth, kNarrowest, kWidest);
    scale_ = plot_width_ / makespan;
    plot_height_ = static_cast<double>(timeline.ranks.size()) * (kRowHeight + kRowGap);
  }

  std::string Write() {
    absl::StrAppendFormat(
        &text_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"%.0f\" y=\"22\" font-size=\"15\">%s: makespan %g, bubble %s</text>\n",
        kLeft + plot_width_ + kRight, kTop + plot_height_ + kBottom, kLeft, Escaped(timeline_.name),
        timeline_.report.makespan, FormatPercent(timeline_.report.bubble_fraction));
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) WriteRank(rank);
    WriteAxis();
    WriteLegend();
    absl::StrAppend(&text_, "</svg>\n");
    return std::move(text_);
  }

 private:
  void WriteRank(std::size_t rank) {
    const double y = kTop + static_cast<double>(rank) * (kRowHeight + kRowGap);
    absl::StrAppendFormat(
        &text_,
        "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">rank %d</text>\n"
        "<rect x=\"%.0f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"#eeeeee\"/>\n",
        kLeft - 8, y + kRowHeight / 2 + 4, rank, kLeft, y, plot_width_, kRowHeight);
    for (const TimelineCell& cell : timeline_.ranks[rank]) WriteCell(cell, y);
  }

  void WriteCell(const TimelineCell& cell, double y) {
    const double x = kLeft + cell.start * scale_;
    const double width = (cell.end - cell.start) * scale_;
    const std::string label = absl::StrCat(cell.action.microbatch.value());
    absl::StrAppendFormat(
        &text_,
        "<g><title>%s: %g to %g</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" "
        "fill=\"%s\" stroke=\"white\"/>",
        cell.action.ToString(), cell.start, cell.end, x, y, width, kRowHeight,
        ColorOf(cell.action.kind));
    if (width >= 7 * static_cast<double>(label.size())) {
      absl::StrAppendFormat(&text_, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                            x + width / 2, y + 13, label);
    }
    const std::string stage = absl::StrCat("s", cell.action.stage.value());
    if (width >= 6 * static_cast<double>(stage.size())) {
      absl::StrAppendFormat(
          &text_, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"8\">%s</text>",
          x + width / 2, y + 25, stage);
    }
    absl::StrAppend(&text_, "</g>\n");
  }

  void WriteAxis() {
    const double makespan = timeline_.report.makespan;
    if (!(makespan > 0)) return;
    const double step = TickStep(makespan);
    const double y = kTop + plot_height_;
    for (int i = 0; i * step <= makespan * (1 + 1e-9); ++i) {
      const double x = kLeft + i * step * scale_;
      absl::StrAppendFormat(
          &text_,
          "<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"#666666\"/>"
          "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
          x, y, x, y + 5, x, y + 17, i * step);
    }
  }

  void WriteLegend() {
    double x = kLeft;
    const double y = kTop + plot_height_ + 32;
    for (const Kind& kind : kKinds) {
      absl::StrAppendFormat(&text_,
                            "<rect x=\"%.0f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                            "<text x=\"%.0f\" y=\"%.1f\">%s</text>\n",
                            x, y, kind.color, x + 17, y + 10, kind.name);
      x += 150;
    }
    absl::StrAppendFormat(
        &text_,
        "<text x=\"%.0f\" y=\"%.1f\" fill=\"#666666\">number: microbatch, s: stage</text>\n", x,
        y + 10);
  }

  const Timeline& timeline_;
  double plot_width_ = 0, plot_height_ = 0, scale_ = 1;
  std::string text_;
};

}  // namespace

std::string FormatSvg(const Timeline& timeline) { return SvgWriter(timeline).Write(); }

}  // namespace takt::cli
