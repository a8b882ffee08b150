// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/svg_parts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace takt::schedule {
namespace {

constexpr Paint kPaints[] = {
    {ActionKind::kForward, "F forward", 122, 176, 236},
    {ActionKind::kBackward, "B backward (I and W)", 134, 204, 146},
    {ActionKind::kInputGrad, "I gradient of inputs", 245, 186, 103},
    {ActionKind::kWeightGrad, "W gradient of weights", 188, 160, 226},
    {ActionKind::kVocabularyForward, "S logits", 128, 206, 208},
    {ActionKind::kVocabularyBackward, "T loss, gradients of the head", 238, 150, 160}};

}  // namespace

std::span<const Paint> Paints() { return kPaints; }

const Paint& PaintOf(ActionKind kind) {
  return *std::find_if(std::begin(kPaints), std::end(kPaints),
                       [&](const Paint& paint) { return paint.kind == kind; });
}

std::string Escape(std::string_view text) {
  std::string escaped = absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                                            {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  std::ranges::replace_if(
      escaped, [](unsigned char c) { return c < ' '; }, ' ');
  return escaped;
}

std::string Number(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Fill(const Paint& paint, int chunk, int num_chunks) {
  const double share = num_chunks > 1 ? static_cast<double>(chunk) / (num_chunks - 1) : 0.5;
  const auto shade = [&](int value) {
    const double lighter = 255 - (255 - value) * 0.45;
    const double darker = value * 0.8;
    const double shaded = share < 0.5 ? lighter + (value - lighter) * 2 * share
                                      : value + (darker - value) * (2 * share - 1);
    return static_cast<int>(std::lround(shaded));
  };
  return absl::StrFormat("#%02x%02x%02x", shade(paint.red), shade(paint.green), shade(paint.blue));
}

void AppendLegend(double& x, double y, double height, std::string_view fill, std::string_view text,
                  std::string& svg) {
  absl::StrAppendFormat(&svg,
                        "<rect x=\"%s\" y=\"%s\" width=\"13\" height=\"%s\" fill=\"%s\" "
                        "stroke=\"#666\" stroke-width=\".5\"/>"
                        "<text class=\"s\" x=\"%s\" y=\"%s\">%s</text>\n",
                        Number(x), Number(y + (13 - height) / 2), Number(height), fill,
                        Number(x + 18), Number(y + 10.5), text);
  x += 36 + 5.8 * static_cast<double>(text.size());
}

double TickStep(double pixels_per_unit) {
  const double least = 60 / pixels_per_unit;
  double step = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (step < least) step *= factor;
  }
  return step;
}

}  // namespace takt::schedule
