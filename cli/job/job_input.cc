// SPDX-License-Identifier: Apache-2.0
#include "cli/job/job_input.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/base/input_file.h"
#include "cli/client/connect.h"
#include "cli/client/local_address.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/config/spec_files.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestJobFile = std::size_t{1} << 20;
constexpr std::size_t kLargestCompanionFile = std::size_t{16}
                                              << 20;  // a schedule's CSV, a config.json

}  // namespace

void AddJobInput(CLI::App& command, JobInput& input, const char* example) {
  command.add_option("JOB", input.path, "Job file (YAML or JSON); - reads stdin")
      ->type_name("JOB.yaml")
      ->required();
  command.add_option("--set", input.set, absl::StrCat("Change a field of the job, e.g. ", example))
      ->type_name("a.b=c")
      ->allow_extra_args(false);
}

absl::StatusOr<PreparedJob> PrepareJob(const JobInput& input) {
  ASSIGN_OR_RETURN(const std::string text, ReadInputFile(input.path, "JOB.yaml", kLargestJobFile));
  const config::JobFileOptions options{.name = input.path == "-" ? "stdin" : input.path,
                                       .overrides = input.set};
  PreparedJob job{.locate = [text, options](const absl::Status& status) {
    return config::LocateErrors(status, text, options);
  }};
  ASSIGN_OR_RETURN(job.spec, config::ParseJobFile(text, options));
  const fs::path directory = fs::absolute(input.path == "-" ? "." : input.path).parent_path();
  if (input.make_paths_absolute) config::MakePathsAbsolute(job.spec, directory.string());
  absl::Status status = config::FillFromFiles(job.spec, [&](const std::string& path) {
    return ReadFileUpTo((directory / path).string(), kLargestCompanionFile);
  });
  if (status.ok()) status = config::ToJobSpec(job.spec).status();
  if (!status.ok()) return job.locate(status);
  return job;
}

absl::StatusOr<PreparedJob> PrepareJobToSubmit(const Context& context, JobInput input) {
  // Errors of the job are reported whether or not a coordinator answers.
  const absl::StatusOr<std::string> address = CoordinatorAddress(context);
  input.make_paths_absolute = address.ok() && IsOfLocalCluster(*address);
  return PrepareJob(input);
}

}  // namespace takt::cli
