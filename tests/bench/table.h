// SPDX-License-Identifier: Apache-2.0
// Prints figures as lines of a table while they are measured, or as one JSON object at the end.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace takt::bench {

struct Column {
  std::string heading;
  std::string key;    // key of a row's value
  int width = 0;      // at least this, and at least as wide as the heading
  int precision = 0;  // digits of a number after the point
  double scale = 1;   // factor of a number, such as 1e3 for seconds under "ms"
};

class Table {
 public:
  Table(bool json, std::vector<Column> columns);
  ~Table();

  // Adds an object, which may have keys that no column shows. In text it prints a line that ends
  // with `remark`, the first time below the headings, and a dash for null.
  void Add(const nlohmann::json& row, std::string_view remark = "");

  // In JSON it prints `object` with all rows under "rows".
  void End(nlohmann::json object);

 private:
  const bool json_;
  const std::vector<Column> columns_;
  const std::unique_ptr<nlohmann::json> rows_;
};

}  // namespace takt::bench
