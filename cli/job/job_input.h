// SPDX-License-Identifier: Apache-2.0
// From a job file on the client's disk to a spec that needs none of the client's files any more.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::cli {

struct JobInput {
  std::string path;              // "-": stdin
  std::vector<std::string> set;  // "a.b=c"
  // Relative paths are relative to the job's file: true on one machine, where the workers' roots
  // are "/". False: they stay as they are, under the workers' roots, and only the files that the
  // client reads itself are looked for beside the job's file.
  bool make_paths_absolute = false;
};

struct PreparedJob {
  v1::JobSpec spec;
  // What a server says is wrong with the spec, with the places in the file.
  std::function<absl::Status(const absl::Status&)> locate;
};

// Reads, completes and validates. Errors: kInvalidArgument with a FieldError for everything that is
// wrong.
absl::StatusOr<PreparedJob> PrepareJob(const JobInput& input);

}  // namespace takt::cli
