// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/csv_table.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace takt::bench {

void CsvRow::Refuse(const std::string& column, std::string rule, std::string fix) {
  const auto cell = cells_.find(column);
  rules_.Check(false, {.field = column,
                       .value = cell == cells_.end() ? "" : cell->second,
                       .rule = std::move(rule),
                       .fix = std::move(fix),
                       .where = where_});
}

std::string CsvRow::Text(const std::string& column) {
  const auto cell = cells_.find(column);
  if (cell != cells_.end() && !cell->second.empty()) return cell->second;
  Refuse(column, "is missing", "add it");
  return "";
}

int CsvRow::Count(const std::string& column) {
  const std::string text = Text(column);
  int count = 0;
  if (text.empty() || (absl::SimpleAtoi(text, &count) && count >= 1)) return count;
  Refuse(column, "must be a whole number from 1 on", "correct it");
  return 0;
}

double CsvRow::Positive(const std::string& column) {
  const std::string text = Text(column);
  double number = 0;
  if (text.empty() || (absl::SimpleAtod(text, &number) && std::isfinite(number) && number > 0))
    return number;
  Refuse(column, "must be a finite number above 0", "correct it");
  return 0;
}

std::vector<double> CsvRow::Numbers(const std::string& column) {
  std::vector<double> numbers;
  const std::vector<std::string> words = absl::StrSplit(Text(column), ' ', absl::SkipEmpty());
  for (const std::string& word : words) {
    double number = 0;
    if (absl::SimpleAtod(word, &number) && std::isfinite(number) && number >= 0) {
      numbers.push_back(number);
      continue;
    }
    Refuse(column, "must be finite numbers from 0 on, which spaces separate", "correct it");
    return {};
  }
  return numbers;
}

absl::StatusOr<std::vector<CsvRow>> ParseCsv(const std::string& text, const std::string& name) {
  std::vector<std::string> columns;
  std::vector<CsvRow> rows;
  int line_number = 0;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    ++line_number;
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string> cells = absl::StrSplit(line, ',');
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    std::string where = absl::StrCat(name, ":", line_number);
    if (cells.size() != columns.size()) {
      return InvalidField(
          {.field = "cells",
           .value = absl::StrCat(cells.size()),
           .rule = absl::StrCat("must be as many as columns (", columns.size(), ")"),
           .fix = "add or remove cells; an empty one may stay empty",
           .where = std::move(where)});
    }
    std::map<std::string, std::string> by_column;
    for (std::size_t i = 0; i < cells.size(); ++i) by_column[columns[i]] = cells[i];
    rows.emplace_back(std::move(where), std::move(by_column));
  }
  if (!columns.empty()) return rows;
  return InvalidField({.field = "columns",
                       .rule = "are missing",
                       .fix = "begin the table with a line of their names",
                       .where = name});
}

}  // namespace takt::bench
