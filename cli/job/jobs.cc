// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

absl::StatusOr<ExitCode> Jobs(const Context& context) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, client->ListJobs());
  ASSIGN_OR_RETURN(const std::vector<v1::HeldJob> held, client->ListHeldJobs());
  PrintJobs(context, jobs, held);
  return ExitCode::kDone;
}

}  // namespace

void AddJobs(CLI::App& app, Context& context) {
  AddAction(app, context, "jobs", "List jobs, newest first", [&context] { return Jobs(context); })
      ->footer(
          "With -o json one object {\"jobs\": [...]}, with \"held_jobs\" beside it if there are "
          "any: "
          "jobs that workers hold and the coordinator's state does not know (takt adopt).\n\n"
          "Examples:\n"
          "  takt jobs\n"
          "  takt -o json jobs | jq -r '.jobs[] | select(.state == \"RUNNING\").name'");
}

}  // namespace takt::cli
