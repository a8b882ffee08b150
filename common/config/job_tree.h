// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/config/job_file.h"
#include "common/config/yaml_tree.h"

namespace takt::config {

// Returns the tree of a job file with the overrides applied. In a node from an override `where`
// begins with "--set".
absl::StatusOr<YamlNode> ParseJobTree(std::string_view text, const JobFileOptions& options);

}  // namespace takt::config
