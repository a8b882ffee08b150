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
          "HELD: workers train the job, and the coordinator does not know it (takt adopt).\n"
          "With -o json one object {\"jobs\": [...]}, with \"held_jobs\" if there are any.\n\n"
          "Examples:\n"
          "  takt jobs\n"
          "  takt -o json jobs | jq -r '.jobs[] | select(.state == \"RUNNING\").name'");
}

}  // namespace takt::cli
