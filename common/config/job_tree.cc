// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_tree.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/config/spec_rules.h"

namespace takt::config {
namespace {

using Kind = YamlNode::Kind;

void Relocate(YamlNode& node, const std::string& where) {
  node.where = where;
  for (std::string& key_where : node.key_where) key_where = where;
  for (YamlNode& value : node.values) Relocate(value, where);
}

// Returns the child of `node` called `part`, and makes it if it is not there. Returns nullptr if
// `node` cannot have children of that name.
YamlNode* Descend(YamlNode& node, const std::string& part, const std::string& where) {
  if (node.kind == Kind::kList) {
    std::size_t index = 0;
    const bool inside = absl::SimpleAtoi(part, &index) && index < node.values.size();
    return inside ? &node.values[index] : nullptr;
  }
  if (node.kind == Kind::kScalar) return nullptr;
  node.kind = Kind::kMap;
  const auto it = std::find(node.keys.begin(), node.keys.end(), part);
  if (it != node.keys.end()) return &node.values[it - node.keys.begin()];
  node.keys.push_back(part);
  node.key_where.push_back(where);
  node.values.push_back({.where = where});
  return &node.values.back();
}

absl::Status ApplyOverride(YamlNode& root, const std::string& text) {
  const std::string where = absl::StrCat("--set ", Shown(text));
  const std::size_t equals = text.find('=');
  const std::string path = text.substr(0, equals);
  if (equals == std::string::npos || path.empty()) {
    return InvalidField({.field = "--set",
                         .value = Shown(text),
                         .rule = "must be field=value",
                         .fix = "e.g. steps=100"});
  }
  const std::string written = text.substr(equals + 1);
  ASSIGN_OR_RETURN(YamlNode value, ParseYaml(written, where));
  // "a=" means null, and "a={}" an empty mapping.
  if (absl::StripAsciiWhitespace(written).empty()) value.kind = Kind::kNull;
  Relocate(value, where);
  YamlNode* node = &root;
  for (const auto part : absl::StrSplit(path, '.')) {
    node = Descend(*node, std::string(part), where);
    if (node == nullptr) {
      return InvalidField({.field = Shown(path),
                           .rule = absl::StrCat("has nothing called ", Shown(std::string(part)),
                                                " in the job file"),
                           .fix = "name a field, or an element of a list by its number from 0",
                           .where = where});
    }
  }
  *node = std::move(value);
  return absl::OkStatus();
}

// Returns where `field` ("data.train[0].path") is written. For a missing field this is the section
// that lacks it. Element 0 of a list that was written as one value is that value.
std::string Locate(const YamlNode& root, const std::string& field) {
  const YamlNode* node = &root;
  std::string where = root.where;
  const std::string dotted = absl::StrReplaceAll(field, {{"[", "."}, {"]", ""}});
  for (const absl::string_view part : absl::StrSplit(dotted, '.')) {
    std::size_t index = 0;
    const bool is_index = absl::SimpleAtoi(part, &index);
    if (is_index && node->kind != Kind::kList) continue;
    if (is_index) {
      if (index >= node->values.size()) break;
      node = &node->values[index];
      where = node->where;
      continue;
    }
    const auto key = std::find(node->keys.begin(), node->keys.end(), part);
    if (key == node->keys.end()) break;
    const auto position = key - node->keys.begin();
    const std::string& key_where = node->key_where[position];
    node = &node->values[position];
    where = node->kind == Kind::kScalar ? node->where : key_where;
  }
  return where;
}

}  // namespace

absl::StatusOr<YamlNode> ParseJobTree(std::string_view text, const JobFileOptions& options) {
  ASSIGN_OR_RETURN(YamlNode root, ParseYaml(text, options.name, options.rules));
  for (const std::string& override_text : options.overrides) {
    RETURN_IF_ERROR(ApplyOverride(root, override_text));
  }
  return root;
}

absl::Status LocateErrors(const absl::Status& status, std::string_view text,
                          const JobFileOptions& options) {
  std::vector<FieldError> errors = FieldErrorsOf(status);
  const absl::StatusOr<YamlNode> root = ParseJobTree(text, options);
  if (errors.empty() || !root.ok()) return status;
  bool located = false;
  for (FieldError& error : errors) {
    // An option of the command line is in no file.
    if (!error.where.empty() || error.field.starts_with("--")) continue;
    error.where = Locate(*root, error.field);
    located = true;
  }
  if (!located) return status;
  absl::Status with_places = InvalidFields(errors);
  if (errors.size() > 1) return with_places;
  // The message of a single error may say more than its fields do, such as the grid of a schedule.
  absl::Status annotated = Annotate(status, errors.front().where);
  annotated.SetPayload(kErrorDetailUrl, *with_places.GetPayload(kErrorDetailUrl));
  return annotated;
}

}  // namespace takt::config
