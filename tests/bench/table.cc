// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/table.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace takt::bench {
namespace {

int WidthOf(const Column& column) {
  return std::max(column.width, static_cast<int>(column.heading.size()));
}

// Aligns words to the left, and numbers and their headings to the right.
std::string Aligned(const Column& column, const std::string& text, bool words) {
  return words ? absl::StrFormat("%-*s", WidthOf(column), text)
               : absl::StrFormat("%*s", WidthOf(column), text);
}

std::string Cell(const Column& column, const nlohmann::json& value) {
  if (value.is_null()) return "-";
  return value.is_string()
             ? value.get<std::string>()
             : absl::StrFormat("%.*f", column.precision, value.get<double>() * column.scale);
}

}  // namespace

Table::Table(bool json, std::vector<Column> columns)
    : json_(json),
      columns_(std::move(columns)),
      rows_(std::make_unique<nlohmann::json>(nlohmann::json::array())) {}

Table::~Table() = default;

void Table::Add(const nlohmann::json& row, std::string_view remark) {
  rows_->push_back(row);
  if (json_) return;
  const auto line = [&](const auto& text_of) {
    std::string text;
    for (const Column& column : columns_) {
      const nlohmann::json& value = row.at(column.key);
      absl::StrAppend(&text, Aligned(column, text_of(column, value), value.is_string()), "  ");
    }
    return text;
  };
  if (rows_->size() == 1) {
    absl::PrintF("%s\n",
                 line([](const Column& column, const nlohmann::json&) { return column.heading; }));
  }
  absl::PrintF("%s%s\n", line(Cell), std::string(remark));
  std::fflush(stdout);
}

void Table::End(nlohmann::json object) {
  if (!json_) return;
  object["rows"] = *rows_;
  absl::PrintF("%s\n", object.dump());
}

}  // namespace takt::bench
