// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct JobOptions {
  std::string name;
};

absl::StatusOr<ExitCode> ShowJob(const Context& context, const JobOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(options.name));
  PrintJob(context, job);
  return ExitCode::kDone;
}

}  // namespace

void AddJob(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<JobOptions>(
      app, context, "job", "Show one job",
      [](CLI::App& app, JobOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
      },
      ShowJob);
  command->footer("Example:\n  takt job kjv-gpt");
}

}  // namespace takt::cli
