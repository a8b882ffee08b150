// SPDX-License-Identifier: Apache-2.0
// Formats quantities and tables for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

// Returns "850 ms", "12.3 s", "4m05s", "2h03m", "3d04h"; "?" when not finite or negative.
std::string FormatSeconds(double seconds);
// Returns "950", "12.3k", "4.56M", "1.2G".
std::string FormatCount(double count);
// Returns "1.5 KiB", "140 GiB": three digits, as for rates and files. FormatMemory
// (common/base/memory_kind.h) tells sizes of memory that are close to each other apart.
std::string FormatBytes(double bytes);
// Returns "27.3%".
std::string FormatPercent(double fraction);

// Returns UTF-8 from elsewhere (reasons, names, log lines) with '?' for every control character
// except newlines and tabs, so that a terminal shows it as text and acts on none of it.
std::string Harmless(std::string_view text);
// The same on one line: blanks replace newlines and tabs.
std::string OneLine(std::string_view text);

// Returns a table whose columns are padded to their widest cell, with two blanks between columns
// and none after the last. OneLine cleans each cell.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { Add(std::move(header)); }
  void Add(std::vector<std::string> row);
  std::string ToString() const;
  // The header first. The cells are cleaned.
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace takt::cli
