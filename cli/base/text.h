// SPDX-License-Identifier: Apache-2.0
// Small pieces of text for people: quantities and tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

// "850 ms", "12.3 s", "4m05s", "2h03m", "3d04h"; "?" when not finite or negative.
std::string FormatSeconds(double seconds);
// "950", "12.3k", "4.56M", "1.2G".
std::string FormatCount(double count);
// "4.0 KiB", "1.5 GiB".
std::string FormatBytes(double bytes);
// "27.3%"
std::string FormatPercent(double fraction);

// UTF-8 that others wrote (reasons, names, log lines), with '?' for every control character but
// newlines and tabs: nothing that a terminal would take for more than text.
std::string Harmless(std::string_view text);
// The same on one line: newlines and tabs become blanks.
std::string OneLine(std::string_view text);

// Columns padded to their widest cell, two blanks between them, nothing after the last. Each cell
// is one line, harmless.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { Add(std::move(header)); }
  void Add(std::vector<std::string> row);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace takt::cli
