// SPDX-License-Identifier: Apache-2.0
// Reads YAML (and so JSON) text as a tree that remembers where everything was written.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::config {

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string text;                    // of a scalar
  std::string where;                   // "job.yaml:12:5", counted from 1
  std::vector<std::string> keys;       // of a map, in the order written; repeated keys are kept
  std::vector<std::string> key_where;  // beside `keys`
  std::vector<YamlNode> values;        // of a map (beside `keys`) or a list
};

// Says what kind of file is read, and how large it may be. A node is a value or a key.
struct YamlRules {
  std::string what = "job file";  // what errors call it
  std::size_t max_bytes = std::size_t{1} << 20;
  std::size_t max_nodes = 100000;
};

// Reads one document. An empty one is an empty map. The size is bounded for any input: by `rules`,
// and at most 32 levels. Anchors, aliases and tags are refused. Errors: kInvalidArgument
// (FieldError whose field is `rules.what`) with `where` = "name:line:column".
absl::StatusOr<YamlNode> ParseYaml(std::string_view text, std::string_view name,
                                   const YamlRules& rules = {});

}  // namespace takt::config
