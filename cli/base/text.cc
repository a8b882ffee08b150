// SPDX-License-Identifier: Apache-2.0
#include "cli/base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace takt::cli {

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 59.95) return absl::StrFormat("%.3g s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole % 86400 / 3600);
}

namespace {

std::string Scaled(double value, double base, const std::vector<const char*>& units) {
  std::size_t unit = 0;
  while (std::abs(value) >= base * 0.9995 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.4g%s", value, units[0])
                   : absl::StrFormat("%.3g%s", value, units[unit]);
}

}  // namespace

std::string FormatCount(double count) { return Scaled(count, 1e3, {"", "k", "M", "G", "T", "P"}); }

std::string FormatBytes(double bytes) {
  return Scaled(bytes, 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
}

std::string FormatPercent(double fraction) { return absl::StrFormat("%.1f%%", fraction * 100); }

std::string Harmless(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    // U+0080 to U+009F are control characters, too. One of them begins a sequence like the escape.
    const bool is_c1 =
        byte(i) == 0xc2 && i + 1 < text.size() && byte(i + 1) >= 0x80 && byte(i + 1) <= 0x9f;
    const bool is_c0 = absl::ascii_iscntrl(byte(i)) && text[i] != '\n' && text[i] != '\t';
    out += is_c1 || is_c0 ? '?' : text[i];
    if (is_c1) ++i;
  }
  return out;
}

std::string OneLine(std::string_view text) {
  std::string line = Harmless(text);
  std::replace_if(line.begin(), line.end(), absl::ascii_isspace, ' ');
  return line;
}

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = OneLine(cell);
  rows_.push_back(std::move(row));
}

std::string Table::ToString() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i]);
      if (i + 1 < row.size()) line.append(widths[i] + 2 - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace takt::cli
