// SPDX-License-Identifier: Apache-2.0
// Reads a job file and returns a spec that needs no other file of the client.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::cli {

struct JobInput {
  std::string path;              // "-": stdin
  std::vector<std::string> set;  // "a.b=c"
  // True: relative paths are relative to the job's file, as on one machine, where the root of the
  // workers is "/". False: they stay as they are, under the workers' roots; only the files that the
  // client reads itself are relative to the job's file.
  bool make_paths_absolute = false;
};

// Declares JOB and --set. example: what --set may say.
void AddJobInput(CLI::App& command, JobInput& input, const char* example);

struct PreparedJob {
  v1::JobSpec spec;
  // Adds the places in the file to what a server says is wrong with the spec.
  std::function<absl::Status(const absl::Status&)> locate;
};

// Reads, completes and validates the job. Errors: kInvalidArgument with a FieldError for everything
// that is wrong.
absl::StatusOr<PreparedJob> PrepareJob(const JobInput& input);
// The same, with paths as the coordinator needs them that the command would call.
absl::StatusOr<PreparedJob> PrepareJobToSubmit(const Context& context, JobInput input);

}  // namespace takt::cli
