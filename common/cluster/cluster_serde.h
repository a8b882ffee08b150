// SPDX-License-Identifier: Apache-2.0
// Clusters from files that people write, and to files that they read (docs/clusters.md).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/cluster/cluster.h"

namespace takt::cluster {

// The largest file that is read.
inline constexpr std::size_t kMostFileBytes = std::size_t{16} << 20;

// Reads YAML or JSON text. `name` is the file's, for errors. Hosts and GPUs that the file does not
// name get names of their own. Errors: kInvalidArgument (FieldError with `where`): all that is
// wrong, up to some 20 errors; a profile that another version of the program measured.
absl::StatusOr<Cluster> ParseCluster(std::string_view text, const std::string& name);

// Returns YAML that ParseCluster reads back to an equal cluster, but for the order of the workers,
// for names of hosts and GPUs, and for what plans do not depend on: a device's index, bus and
// versions, and the links of the profile. Equal workers on equal hosts are one entry. Names of
// hosts appear only where workers of one host differ or share a GPU.
std::string FormatCluster(const Cluster& cluster);
// Returns the same as one line of JSON.
std::string FormatClusterJson(const Cluster& cluster);

}  // namespace takt::cluster
