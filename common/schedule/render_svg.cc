// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/schedule/render.h"

namespace takt::schedule {
namespace {

// Pixels.
constexpr double kLeft = 64, kTop = 64, kRight = 24, kRowHeight = 26, kRowGap = 6, kAxisHeight = 34;
constexpr double kCharWidth = 6.2;        // of a label, at its font size of 10
constexpr double kWidestDrawing = 24000;  // beyond, labels that do not fit are left to tooltips

struct Paint {
  ActionKind kind;
  std::string_view name;
  int red, green, blue;  // of the first chunk
};
constexpr Paint kPaints[] = {{ActionKind::kForward, "F forward", 122, 176, 236},
                             {ActionKind::kBackward, "B backward (I and W)", 134, 204, 146},
                             {ActionKind::kInputGrad, "I gradient of inputs", 245, 186, 103},
                             {ActionKind::kWeightGrad, "W gradient of weights", 188, 160, 226}};

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else {
      escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return escaped;
}

// Chunks go from lighter to darker: the eye follows a microbatch through its passes, and black
// labels stay readable.
std::string Fill(ActionKind kind, int chunk, int num_chunks) {
  const double share = num_chunks > 1 ? static_cast<double>(chunk) / (num_chunks - 1) : 0.5;
  const auto shade = [&](int value) {
    const double lighter = 255 - (255 - value) * 0.45;
    const double darker = value * 0.8;
    const double shaded = share < 0.5 ? lighter + (value - lighter) * 2 * share
                                      : value + (darker - value) * (2 * share - 1);
    return static_cast<int>(std::lround(shaded));
  };
  for (const Paint& paint : kPaints) {
    if (paint.kind != kind) continue;
    return absl::StrFormat("#%02x%02x%02x", shade(paint.red), shade(paint.green),
                           shade(paint.blue));
  }
  return "#cccccc";
}

// A round number of time units between two ticks, at least 60 pixels apart.
double TickStep(double pixels_per_unit) {
  const double least = 60 / pixels_per_unit;
  double step = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (step < least) step *= factor;
  }
  return step;
}

class Drawing {
 public:
  explicit Drawing(const Timeline& timeline) : timeline_(timeline) {
    double shortest = timeline.makespan;
    std::size_t longest_label = 2;
    int num_stages = 1;
    for (const auto& row : timeline.ranks) {
      for (const TimedAction& timed : row) {
        if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
        longest_label = std::max(longest_label, Label(timed.action).size());
        num_stages = std::max(num_stages, timed.action.stage.value() + 1);
      }
    }
    const int num_ranks = std::max<int>(1, static_cast<int>(timeline.ranks.size()));
    num_chunks_ = (num_stages + num_ranks - 1) / num_ranks;
    num_ranks_ = num_ranks;
    const double makespan = timeline.makespan > 0 ? timeline.makespan : 1;
    const double wanted =
        shortest > 0 ? (static_cast<double>(longest_label) * kCharWidth + 5) / shortest : 1;
    scale_ = std::max(std::min(wanted, kWidestDrawing / makespan), 560 / makespan);
    width_ = kLeft + makespan * scale_ + kRight;
    height_ =
        kTop + static_cast<double>(timeline.ranks.size()) * (kRowHeight + kRowGap) + kAxisHeight;
  }

  std::string Draw() {
    Header();
    Legend();
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) Row(rank);
    Axis();
    absl::StrAppend(&svg_, "</svg>\n");
    return std::move(svg_);
  }

 private:
  static std::string Label(const Action& action) {
    const char letter[] = {Letter(action.kind), '\0'};
    return absl::StrCat(letter, action.microbatch.value());
  }

  double X(double time) const { return kLeft + time * scale_; }

  void Header() {
    absl::StrAppendFormat(
        &svg_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
        "%.0f %.0f\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"10\">\n"
        "<defs><pattern id=\"idle\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" fill=\"#f4f4f4\"/>"
        "<rect width=\"1.2\" height=\"7\" fill=\"#d4d4d4\"/></pattern></defs>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"12\" y=\"22\" font-size=\"14\" font-weight=\"bold\">%s</text>\n",
        width_, height_, width_, height_, Escape(timeline_.title));
  }

  void LegendEntry(double& x, const std::string& fill, std::string_view text) {
    absl::StrAppendFormat(&svg_,
                          "<rect x=\"%.1f\" y=\"36\" width=\"14\" height=\"14\" fill=\"%s\" "
                          "stroke=\"#666\" stroke-width=\"0.5\"/>"
                          "<text x=\"%.1f\" y=\"47\" font-size=\"11\">%s</text>\n",
                          x, fill, x + 19, std::string(text));
    x += 36 + 6.0 * static_cast<double>(text.size());
  }

  void Legend() {
    double x = 12;
    for (const Paint& paint : kPaints) {
      const bool used =
          std::any_of(timeline_.ranks.begin(), timeline_.ranks.end(), [&](const auto& row) {
            return std::any_of(row.begin(), row.end(), [&](const TimedAction& timed) {
              return timed.action.kind == paint.kind;
            });
          });
      if (used) LegendEntry(x, Fill(paint.kind, 0, 1), paint.name);
    }
    LegendEntry(x, "url(#idle)", "idle");
    if (num_chunks_ > 1) {
      absl::StrAppendFormat(
          &svg_, "<text x=\"%.1f\" y=\"47\" font-size=\"11\">darker: later chunk</text>\n", x);
    }
  }

  void Row(std::size_t rank) {
    const double y = kTop + static_cast<double>(rank) * (kRowHeight + kRowGap);
    absl::StrAppendFormat(
        &svg_,
        "<text x=\"12\" y=\"%.1f\" font-size=\"12\">rank %d</text>\n"
        "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"url(#idle)\"/>\n",
        y + 17, rank, X(0), y, timeline_.makespan * scale_, kRowHeight);
    bool lower_half = false;
    for (const TimedAction& timed : timeline_.ranks[rank]) {
      if (timed.action.joins_next) {
        Box(timed, rank, y, kRowHeight / 2);
      } else if (lower_half) {
        Box(timed, rank, y + kRowHeight / 2, kRowHeight / 2);
      } else {
        Box(timed, rank, y, kRowHeight);
      }
      lower_half = timed.action.joins_next;
    }
  }

  void Box(const TimedAction& timed, std::size_t rank, double y, double height) {
    const std::string label = Label(timed.action);
    const double width = (timed.end - timed.start) * scale_;
    absl::StrAppendFormat(
        &svg_,
        "<g><title>%s on rank %d: %g to %g</title>"
        "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\" stroke=\"#555\" "
        "stroke-width=\"0.6\"/>",
        timed.action.ToString(), rank, timed.start, timed.end, X(timed.start), y, width, height,
        Fill(timed.action.kind, timed.action.stage.value() / num_ranks_, num_chunks_));
    if (width >= static_cast<double>(label.size()) * kCharWidth) {
      absl::StrAppendFormat(&svg_, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                            X(timed.start) + width / 2, y + height / 2 + 3.5, label);
    }
    absl::StrAppend(&svg_, "</g>\n");
  }

  void Axis() {
    const double y = height_ - kAxisHeight + 4;
    absl::StrAppendFormat(&svg_, "<path d=\"M%.2f %.1fH%.2f\" stroke=\"#333\"/>\n", X(0), y,
                          X(timeline_.makespan));
    const double step = TickStep(scale_);
    for (int i = 0; i * step <= timeline_.makespan * (1 + 1e-9); ++i) {
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%.2f %.1fv5\" stroke=\"#333\"/>"
                            "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
                            X(i * step), y, X(i * step), y + 17, i * step);
    }
  }

  const Timeline& timeline_;
  int num_ranks_ = 1;
  int num_chunks_ = 1;
  double scale_ = 1;  // pixels per unit of time
  double width_ = 0, height_ = 0;
  std::string svg_;
};

}  // namespace

std::string RenderSvg(const Timeline& timeline) { return Drawing(timeline).Draw(); }

}  // namespace takt::schedule
