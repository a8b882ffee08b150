// SPDX-License-Identifier: Apache-2.0
// Reads tables of figures: CSV without quotes, whose first line names the columns. Lines that begin
// with # are comments.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/field_rules.h"

namespace takt::bench {

// Holds one line of a table. A cell that is missing or wrong is kept as an error, and its value is
// that of the type's default. Read all cells, then ask for status().
class CsvRow {
 public:
  // where: the file and the line, for errors. cells: by column.
  CsvRow(std::string where, std::map<std::string, std::string> cells)
      : where_(std::move(where)), cells_(std::move(cells)) {}

  std::string Text(const std::string& column);
  // Returns a number from 1 on.
  int Count(const std::string& column);
  // Returns a finite number above 0.
  double Positive(const std::string& column);
  // Returns finite numbers from 0 on, which spaces separate; at least one.
  std::vector<double> Numbers(const std::string& column);

  // Keeps an error about a cell that was read.
  void Refuse(const std::string& column, std::string rule, std::string fix);

  // kInvalidArgument (FieldError): all that is wrong.
  absl::Status status() const { return rules_.status(); }

 private:
  const std::string where_;
  const std::map<std::string, std::string> cells_;
  FieldRules rules_;
};

// Reads the lines of a table. name: the file's, for errors. Errors: kInvalidArgument (FieldError):
// there are no columns, or a line has another number of cells.
absl::StatusOr<std::vector<CsvRow>> ParseCsv(const std::string& text, const std::string& name);

}  // namespace takt::bench
