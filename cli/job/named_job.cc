// SPDX-License-Identifier: Apache-2.0
#include "cli/job/named_job.h"

#include <utility>

#include "cli/client/connect.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {

absl::StatusOr<ExitCode> RunOnNamedJob(const Context& context, const std::string& job,
                                       const RunOnJob& run) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  return run(context, *client, job);
}

CLI::App* AddOnJob(CLI::App& app, Context& context, const std::string& name,
                   const std::string& summary, RunOnJob run) {
  return AddCommand<std::string>(
      app, context, name, summary,
      [](CLI::App& command, std::string& job) {
        command.add_option("JOB", job, "Job")->type_name("")->required();
      },
      [run = std::move(run)](const Context& context, const std::string& job) {
        return RunOnNamedJob(context, job, run);
      });
}

RunOnJob PrintResultOf(absl::StatusOr<v1::Job> (Client::*call)(const std::string& job)) {
  return [call](const Context& context, Client& client,
                const std::string& name) -> absl::StatusOr<ExitCode> {
    ASSIGN_OR_RETURN(const v1::Job job, (client.*call)(name));
    PrintJob(context, job);
    return ExitCode::kDone;
  };
}

}  // namespace takt::cli
