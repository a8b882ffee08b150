// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/styled_line.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace takt::cli {
namespace {

constexpr char kReset[] = "\x1b[0m";

const char* Sequence(Style style) {
  constexpr const char* kSequences[] = {"",         "\x1b[1m",  "\x1b[2m", "\x1b[32m",
                                        "\x1b[33m", "\x1b[31m", "\x1b[36m"};
  return kSequences[static_cast<int>(style)];
}

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string_view FirstCharacters(std::string_view text, int count) {
  std::size_t end = 0;
  while (end < text.size()) {
    if (!Continues(text[end]) && count-- == 0) break;
    ++end;
  }
  return text.substr(0, end);
}

void StripBlanks(std::string& text) { text.erase(text.find_last_not_of(' ') + 1); }

}  // namespace

int WidthOf(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), std::not_fn(Continues)));
}

std::string Printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

StyledLine& StyledLine::Append(std::string_view text, Style style) {
  spans_.push_back({std::string(text), style});
  width_ += WidthOf(text);
  return *this;
}

StyledLine& StyledLine::Append(const StyledLine& other) {
  spans_.insert(spans_.end(), other.spans_.begin(), other.spans_.end());
  width_ += other.width_;
  return *this;
}

StyledLine& StyledLine::PadTo(int column) {
  if (column > width_) Append(std::string(column - width_, ' '));
  return *this;
}

std::string StyledLine::Text(int columns, bool color) const {
  std::string text;
  int left = std::max(0, columns);
  for (const Span& span : spans_) {
    const std::string_view part = FirstCharacters(span.text, left);
    left -= WidthOf(part);
    if (part.empty()) continue;
    const bool colored = color && span.style != Style::kPlain;
    if (colored) text += Sequence(span.style);
    text += part;
    if (colored) text += kReset;
  }
  StripBlanks(text);
  return text;
}

std::string BarOf(double fraction, int width, bool unicode) {
  if (width < 5) return "";
  const int room = width - 2;
  const double share = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0;
  const int filled = static_cast<int>(std::lround(share * room));
  std::string bar = "[";
  for (int i = 0; i < room; ++i) {
    if (i < filled) {
      bar += unicode ? "\u2588" : "#";
    } else {
      bar += unicode ? "\u2591" : "-";
    }
  }
  return bar + "]";
}

}  // namespace takt::cli
