// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::schedule {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string_view Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Takes the part before the next `separator`, so that `text` keeps what follows it.
std::string_view TakeUntil(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

absl::Status CellError(const absl::Status& status, std::string_view name, std::size_t row,
                       int cell) {
  std::vector<FieldError> errors = FieldErrorsOf(status);
  for (FieldError& error : errors) {
    error.where = absl::StrCat(std::string(name), ":", row, ":", cell);
  }
  return InvalidFields(std::move(errors));
}

absl::StatusOr<Row> ParseRow(std::string_view line, std::string_view name, std::size_t row) {
  Row actions;
  for (int cell = 1; !line.empty(); ++cell) {
    const std::string_view text = Trim(TakeUntil(line, ','));
    if (text.empty()) continue;
    const absl::StatusOr<std::vector<Action>> parsed = ParseCell(text);
    if (!parsed.ok()) return CellError(parsed.status(), name, row, cell);
    actions.insert(actions.end(), parsed->begin(), parsed->end());
  }
  return actions;
}

}  // namespace

absl::StatusOr<Schedule> ParseCsv(std::string_view text, std::string_view name) {
  Schedule schedule{.name = std::string(name)};
  // Blank lines at the end are no ranks. One in between is a rank without work, which the validator
  // refuses.
  const std::size_t last = text.find_last_not_of(" \t\r\n,");
  text = text.substr(0, last == text.npos ? 0 : last + 1);
  std::int64_t num_actions = 0;
  while (!text.empty()) {
    std::string_view line = TakeUntil(text, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    ASSIGN_OR_RETURN(Row row, ParseRow(line, name, schedule.ranks.size() + 1));
    for (const Action& action : row) {
      const bool of_vocabulary = IsOfVocabulary(action.kind);
      schedule.spreads_vocabulary |= of_vocabulary;
      if (!of_vocabulary) {
        schedule.num_stages = std::max(schedule.num_stages, action.stage.value() + 1);
      }
      schedule.num_microbatches =
          std::max(schedule.num_microbatches, action.microbatch.value() + 1);
    }
    num_actions += static_cast<std::int64_t>(row.size());
    schedule.ranks.push_back(std::move(row));
  }
  if (num_actions == 0) {
    return InvalidField({.field = "schedule",
                         .value = std::string(name),
                         .rule = "has at least one action",
                         .fix = "one row per rank, cells like 0F0 separated by commas"});
  }
  return schedule;
}

std::string FormatCsv(const Schedule& schedule) {
  std::string text;
  for (const Row& row : schedule.ranks) {
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      const bool pair = BeginsPair(row, i);
      absl::StrAppend(&text, i == 0 ? "" : ",", CellText(row, i), pair ? "OVERLAP_F_B" : "");
      if (pair) ++i;
    }
    text += '\n';
  }
  return text;
}

}  // namespace takt::schedule
