// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/config/job_file.h"
#include "common/config/yaml_tree.h"

namespace takt::config {

// The tree of a job file with the overrides applied; what an override brings has "--set ..." for
// its `where`.
absl::StatusOr<YamlNode> ParseJobTree(std::string_view text, const JobFileOptions& options);

}  // namespace takt::config
