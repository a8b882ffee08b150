// SPDX-License-Identifier: Apache-2.0
// From a job file on the client's disk to a spec that needs none of the client's files any more.
#pragma once

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

// Reads, completes and validates. Errors: kInvalidArgument with a FieldError for everything that is
// wrong.
absl::StatusOr<v1::JobSpec> PrepareJob(const JobInput& input);

// At most `limit` bytes of a regular file (or pipe); kInvalidArgument (FieldError naming `field`):
// it cannot be read or is larger.
absl::StatusOr<std::string> ReadInputFile(const std::string& path, const std::string& field,
                                          std::size_t limit);

}  // namespace takt::cli
