// SPDX-License-Identifier: Apache-2.0
// Figures as lines for people as they come, or as one JSON object at the end: each is written once.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace takt::bench {

struct Column {
  std::string heading;
  std::string key;    // of a row
  int width = 0;      // at least; that of the heading is
  int precision = 0;  // of numbers: digits after the point
  double scale = 1;   // what a number is multiplied by: 1e3 for seconds under "ms"
};

class Table {
 public:
  Table(bool json, std::vector<Column> columns);
  ~Table();

  // An object; it may have keys that no column shows. Text: prints it, with `remark` at the end of
  // the line, the first one under the headings.
  void Add(const nlohmann::json& row, std::string_view remark = "");

  // JSON: prints `object` with all rows under "rows".
  void End(nlohmann::json object);

 private:
  const bool json_;
  const std::vector<Column> columns_;
  const std::unique_ptr<nlohmann::json> rows_;
};

}  // namespace takt::bench
