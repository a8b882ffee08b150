// SPDX-License-Identifier: Apache-2.0
#include "cli/job/cluster_input.h"

#include "cli/base/input_file.h"
#include "common/base/status.h"
#include "common/cluster/cluster_serde.h"

namespace takt::cli {

absl::StatusOr<plan::PlanOptions> OptionsForClusterFile(const std::string& path,
                                                        const config::JobSpec& job) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadInputFile(path, "--cluster", cluster::kMostFileBytes));
  ASSIGN_OR_RETURN(const cluster::Cluster cluster,
                   cluster::ParseCluster(text, path == "-" ? "stdin" : path));
  return cluster::PlanOptionsFor(job, cluster);
}

}  // namespace takt::cli
