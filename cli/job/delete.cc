// SPDX-License-Identifier: Apache-2.0
#include "cli/base/report.h"
#include "cli/job/commands.h"
#include "cli/job/named_job.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

absl::StatusOr<ExitCode> Delete(const Context& context, Client& client, const std::string& job) {
  RETURN_IF_ERROR(client.DeleteJob(job));
  if (context.json()) PrintJson(context, {{"deleted", job}});
  return ExitCode::kDone;
}

}  // namespace

void AddDelete(CLI::App& app, Context& context) {
  AddOnJob(app, context, "delete", "Delete a job that has ended, with its step log", Delete)
      ->footer("Example:\n  takt delete kjv-gpt");
}

}  // namespace takt::cli
