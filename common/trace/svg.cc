// SPDX-License-Identifier: Apache-2.0
#include "common/trace/svg.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/schedule/svg_parts.h"
#include "common/sim/timeline.h"
#include "common/trace/labels.h"

namespace takt::trace {
namespace {

using program::Instruction;
using program::Op;
using program::Program;
using schedule::ActionKind;
using schedule::Number;

// Pixels.
constexpr double kLeft = 120, kTop = 92, kRight = 24, kAxisHeight = 30;
constexpr double kRowHeight = 24, kIdleHeight = 10, kPredictedHeight = 11, kRowGap = 12;
constexpr double kNarrowestTime = 900, kWidestTime = 24000;
constexpr double kCharWidth = 6.2;                  // of a label, at its font size of 10
constexpr double kShortestWidth = 21;               // that most actions should have
constexpr std::string_view kOtherWork = "#c4c4c4";  // norms, optimizer
constexpr std::string_view kIdleFills[kNumCauses + 1] = {
    "", "#e6b8b0", "#e0693e", "#5b54c9", "#c0408a", "#8a6d3b", "#333333", "#9fb7b0"};

bool OnComputeLane(const Program& program, const Instruction& instruction) {
  return program.lanes[instruction.lane.value()].kind == program::LaneKind::kCompute;
}

class Drawing {
 public:
  explicit Drawing(const Timeline& timeline) : timeline_(timeline), trace_(*timeline.trace) {
    origin_ = timeline.steps.front().start_nanos;
    std::vector<double> lengths;
    for (const Slice& slice : timeline.slices) {
      const Program& program = trace_.ProgramOf(slice.rank);
      const Instruction& instruction = program.body[slice.instruction];
      if (!OnComputeLane(program, instruction)) continue;
      origin_ = std::min(origin_, slice.start_nanos);
      if (program::IsCompute(instruction.op)) {
        lengths.push_back(Milliseconds(slice.end_nanos - slice.start_nanos));
      }
    }
    duration_ = Milliseconds(timeline.steps.back().end_nanos - origin_);
    const double time = std::max(duration_, 1e-6);
    scale_ = kNarrowestTime / time;
    if (!lengths.empty()) {
      const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
      std::nth_element(lengths.begin(), middle, lengths.end());
      if (*middle > 0) scale_ = std::max(scale_, kShortestWidth / *middle);
    }
    scale_ = std::min(scale_, kWidestTime / time);
    row_pitch_ = kRowHeight + kRowGap + (timeline.predicted.has_value() ? kPredictedHeight : 0);
    width_ = kLeft + duration_ * scale_ + kRight;
    height_ = kTop + trace_.num_ranks() * row_pitch_ + kAxisHeight;
  }

  std::string Draw() {
    Header();
    Legend();
    Steps();
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) RankLabel(rank);
    for (const Slice& slice : timeline_.prologue) WorkBox(slice);
    for (const Slice& slice : timeline_.slices) WorkBox(slice);
    // Some idle time is in meetings inside of work.
    for (const Idle& idle : timeline_.idle) IdleBox(idle);
    Predictions();
    for (const Flow& flow : timeline_.flows) Arrow(flow);
    Axis();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  static double Milliseconds(std::int64_t nanos) { return static_cast<double>(nanos) * 1e-6; }
  double X(std::int64_t nanos) const { return kLeft + Milliseconds(nanos - origin_) * scale_; }
  double Y(int rank) const { return kTop + rank * row_pitch_; }

  void Header() {
    absl::StrAppendFormat(
        &svg_,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
        "%.0f %.0f\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"10\">\n<style>"
        ".w{stroke:#555;stroke-width:.5}.l{text-anchor:middle}.s{font-size:11px}.g{fill:#666}"
        ".m{stroke:#20304a;stroke-width:.7;stroke-opacity:.6;marker-end:url(#head)}</style>\n"
        "<defs><marker id=\"head\" markerWidth=\"6\" markerHeight=\"6\" refX=\"5\" refY=\"3\" "
        "orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#20304a\"/></marker></defs>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"12\" y=\"22\" font-size=\"13\" font-weight=\"bold\">%s</text>\n",
        width_, height_, width_, height_, schedule::Escape(Title(timeline_)));
  }

  void Legend() {
    std::set<ActionKind> kinds;
    for (const Program& program : trace_.programs) {
      for (const Instruction& instruction : program.body) {
        if (!program::IsCompute(instruction.op)) continue;
        kinds.insert(sim::KindOf(instruction.op));
        if (instruction.op == Op::kOverlap) kinds.insert(ActionKind::kBackward);
      }
    }
    double x = 12;
    for (const schedule::Paint& paint : schedule::Paints()) {
      if (kinds.count(paint.kind) > 0) {
        schedule::AppendLegend(x, 33, 13, schedule::Fill(paint, 0, 1), paint.name, svg_);
      }
    }
    schedule::AppendLegend(x, 33, 13, kOtherWork, "norms, optimizer", svg_);
    if (timeline_.predicted.has_value()) {
      absl::StrAppendFormat(
          &svg_, "<text class=\"s g\" x=\"%s\" y=\"43.5\">thin row: predicted</text>\n", Number(x));
    }
    std::set<Cause> causes;
    for (const Idle& idle : timeline_.idle) causes.insert(idle.cause);
    x = 12;
    for (const Cause cause : causes) {
      schedule::AppendLegend(x, 54, kIdleHeight, kIdleFills[static_cast<int>(cause)],
                             absl::StrFormat("idle: %s", Name(cause)), svg_);
    }
  }

  void Steps() {
    for (const StepWindow& step : timeline_.steps) {
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%s %sV%s\" stroke=\"#b03030\"/><text x=\"%s\" y=\"%s\" "
                            "fill=\"#b03030\">step %d</text>\n",
                            Number(X(step.start_nanos)), Number(kTop - 14),
                            Number(height_ - kAxisHeight), Number(X(step.start_nanos) + 3),
                            Number(kTop - 6), step.step.value());
    }
  }

  void RankLabel(int rank) {
    absl::StrAppendFormat(&svg_, "<text class=\"s\" x=\"12\" y=\"%s\">%s</text>\n",
                          Number(Y(rank) + 16), RankName(trace_, rank));
  }

  void Box(std::string_view style, std::string_view fill, double x, double y, double width,
           double height, std::string_view title) {
    absl::StrAppendFormat(
        &svg_,
        "<rect%s x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"%s\"><title>%s</title></rect>",
        style, Number(x), Number(y), Number(width), Number(height), fill, title);
  }

  std::string Times(std::int64_t start_nanos, std::int64_t end_nanos) const {
    return absl::StrFormat("%.3f to %.3f ms", Milliseconds(start_nanos - origin_),
                           Milliseconds(end_nanos - origin_));
  }

  void IdleBox(const Idle& idle) {
    const double x = std::max(kLeft, X(idle.start_nanos));
    if (X(idle.end_nanos) <= x) return;
    const Program& program = trace_.ProgramOf(idle.rank);
    Box("", kIdleFills[static_cast<int>(idle.cause)], x,
        Y(idle.rank) + (kRowHeight - kIdleHeight) / 2, X(idle.end_nanos) - x, kIdleHeight,
        absl::StrCat("idle before ", ToString(program.body[idle.before], program), ": ",
                     IdleName(idle), ", ", Times(idle.start_nanos, idle.end_nanos)));
    svg_ += '\n';
  }

  std::string FillOf(const Program& program, ActionKind kind, StageId stage) const {
    if (schedule::IsOfVocabulary(kind)) return schedule::Fill(schedule::PaintOf(kind), 0, 1);
    const std::set<StageId> held = program::HeldStages(program);
    const auto chunk = std::distance(held.begin(), held.lower_bound(stage));
    return schedule::Fill(schedule::PaintOf(kind), static_cast<int>(chunk),
                          static_cast<int>(held.size()));
  }

  // The halves of a pair stand above each other, as in all pictures.
  void Work(const Program& program, const Instruction& instruction, double x, double width,
            double y, double height, const std::string& title) {
    constexpr std::string_view kStyle = " class=\"w\"";
    if (!program::IsCompute(instruction.op)) {
      Box(kStyle, kOtherWork, x, y, width, height, title);
      return;
    }
    const bool pair = instruction.op == Op::kOverlap;
    const double upper = pair ? height / 2 : height;
    Box(kStyle, FillOf(program, sim::KindOf(instruction.op), instruction.stage), x, y, width, upper,
        title);
    if (pair) {
      Box(kStyle, FillOf(program, ActionKind::kBackward, instruction.backward_stage), x, y + upper,
          width, height - upper, title);
    }
  }

  void WorkBox(const Slice& slice) {
    const Program& program = trace_.ProgramOf(slice.rank);
    const Instruction& instruction = InstructionOf(trace_, slice);
    if (!OnComputeLane(program, instruction) || slice.start_nanos < origin_) return;
    const std::string label = ToString(instruction, program);
    const double x = X(slice.start_nanos), width = X(slice.end_nanos) - x, y = Y(slice.rank);
    Work(program, instruction, x, width, y, kRowHeight,
         absl::StrCat(label, " of step ", slice.step.value(), ", ",
                      Times(slice.start_nanos, slice.end_nanos)));
    if (width >= static_cast<double>(label.size()) * kCharWidth) {
      absl::StrAppendFormat(&svg_, "<text class=\"l\" x=\"%s\" y=\"%s\">%s</text>",
                            Number(x + width / 2), Number(y + kRowHeight / 2 + 3.5), label);
    }
    svg_ += '\n';
  }

  void Predictions() {
    if (!timeline_.predicted.has_value()) return;
    for (const StepWindow& step : timeline_.steps) {
      for (const sim::Event& event : timeline_.predicted->events) {
        const Program& program = trace_.programs[event.pp_rank];
        const Instruction& instruction = program.body[event.instruction];
        const double x = X(step.start_nanos + std::llround(event.start * 1e9));
        const double width = (event.end - event.start) * 1e3 * scale_;
        for (int chain = 0; chain < trace_.mesh.num_chains(); ++chain) {
          const int rank = trace_.mesh.RankOf(PpRank(event.pp_rank), chain).value();
          Work(program, instruction, x, width, Y(rank) + kRowHeight + 1, kPredictedHeight,
               absl::StrCat(ToString(instruction, program), ", predicted"));
        }
        svg_ += '\n';
      }
    }
  }

  void Arrow(const Flow& flow) {
    const Slice& send = timeline_.slices[flow.send];
    const Slice& recv = timeline_.slices[flow.recv];
    if (send.start_nanos < origin_) return;
    const bool down = recv.rank > send.rank;
    absl::StrAppendFormat(&svg_, "<path class=\"m\" d=\"M%s %sL%s %s\"/>\n",
                          Number(X(send.start_nanos)),
                          Number(Y(send.rank) + (down ? kRowHeight : 0)), Number(X(recv.end_nanos)),
                          Number(Y(recv.rank) + (down ? 0 : kRowHeight)));
  }

  void Axis() {
    const double y = height_ - kAxisHeight + 4;
    absl::StrAppendFormat(&svg_, "<path d=\"M%s %sH%s\" stroke=\"#333\"/>\n", Number(kLeft),
                          Number(y), Number(width_ - kRight));
    const double step = schedule::TickStep(scale_);
    for (int i = 0; i * step <= duration_ * (1 + 1e-9); ++i) {
      const std::string x = Number(kLeft + i * step * scale_);
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%s %sv5\" stroke=\"#333\"/>"
                            "<text class=\"l\" x=\"%s\" y=\"%s\">%g%s</text>\n",
                            x, Number(y), x, Number(y + 17), i * step, i == 0 ? " ms" : "");
    }
  }

  const Timeline& timeline_;
  const JobTrace& trace_;
  std::int64_t origin_ = 0;
  double duration_ = 0;  // ms
  double scale_ = 1;     // pixels per ms
  double row_pitch_ = 0;
  double width_ = 0, height_ = 0;
  std::string svg_;
};

}  // namespace

absl::StatusOr<std::string> RenderSvg(const Timeline& timeline) {
  const std::size_t shapes = timeline.slices.size() + timeline.idle.size() + timeline.flows.size();
  if (shapes > kMostSvgShapes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a picture of ", timeline.steps.size(), " steps of ", timeline.trace->num_ranks(),
        " ranks would have ", shapes, " shapes, at most ", kMostSvgShapes,
        " are drawn: take fewer steps, or the page (html) or perfetto"));
  }
  return Drawing(timeline).Draw();
}

}  // namespace takt::trace
