// SPDX-License-Identifier: Apache-2.0
#include <string>

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

void AddJobs(CLI::App& parent, Context& context, const std::string& name) {
  AddAction(parent, context, name, "List jobs, newest first", [&context] { return Jobs(context); })
      ->footer(
          "REASON ends with ... where it is longer than the row; `takt job JOB` has all of it.\n"
          "HELD: workers train the job, and the coordinator does not know it (takt adopt).\n"
          "With -o json one object {\"jobs\": [...]}, with \"held_jobs\" if there are any.\n\n"
          "Examples:\n"
          "  takt job list\n"
          "  takt -o json job list | jq -r '.jobs[] | select(.state == \"RUNNING\").name'");
}

}  // namespace takt::cli
