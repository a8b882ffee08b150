// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/hf_index.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace takt::checkpoint {
namespace {

using nlohmann::json;

constexpr char kMap[] = "weight_map";

absl::Status Malformed(const std::string& what) { return absl::InvalidArgumentError(what); }

std::string Shown(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, 100)), "\"");
}

// A document, and the first key that one of its objects has twice. The document itself keeps only
// one of the two.
struct Parsed {
  json document;
  std::string repeated_key;
};

Parsed ParseNoting(std::string_view text) {
  Parsed parsed;
  std::vector<std::set<std::string>>
      open;  // keys of the objects that enclose the parser's position
  const auto note = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key &&
        !open.back().insert(value.get_ref<const std::string&>()).second &&
        parsed.repeated_key.empty()) {
      parsed.repeated_key = Shown(value.get_ref<const std::string&>());
    }
    return true;
  };
  parsed.document = json::parse(text, note, /*allow_exceptions=*/false);
  return parsed;
}

bool StaysInFolder(const std::string& file) {
  return !file.empty() && file != "." && file != ".." && file.find('/') == std::string::npos &&
         file.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<WeightMap> ParseHfIndex(std::string_view text) {
  const Parsed parsed = ParseNoting(text);
  if (!parsed.document.is_object()) return Malformed("must be a JSON object");
  if (!parsed.repeated_key.empty()) {
    return Malformed(absl::StrCat(parsed.repeated_key, " is given twice"));
  }
  const auto map = parsed.document.find(kMap);
  if (map == parsed.document.end()) return Malformed("weight_map is missing");
  if (!map->is_object()) return Malformed("weight_map must be an object");
  WeightMap weight_map;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return Malformed(
          absl::StrCat("weight_map: ", Shown(tensor), " must be the name of a file in quotes"));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (!StaysInFolder(name)) {
      return Malformed(absl::StrCat("weight_map: ", Shown(tensor), " is in ", Shown(name),
                                    ", which must be a file of the same folder"));
    }
    weight_map[tensor] = name;
  }
  if (weight_map.empty()) return Malformed("weight_map names no tensor");
  return weight_map;
}

std::string FormatHfIndex(const WeightMap& weight_map, std::int64_t total_size) {
  const json document = {{"metadata", {{"total_size", total_size}}}, {kMap, weight_map}};
  return document.dump(2) + "\n";
}

std::string ShardName(std::string_view kind, int index, int count) {
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", kind, index + 1, count);
}

}  // namespace takt::checkpoint
