// SPDX-License-Identifier: Apache-2.0
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct DeleteOptions {
  std::string name;
};

absl::StatusOr<ExitCode> Delete(const Context& context, const DeleteOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  RETURN_IF_ERROR(client->DeleteJob(options.name));
  if (context.json()) PrintJson(context, {{"deleted", options.name}});
  return ExitCode::kDone;
}

}  // namespace

void AddDelete(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<DeleteOptions>(
      app, context, "delete", "Delete a job that has ended, with its step log",
      [](CLI::App& app, DeleteOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
      },
      Delete);
  command->footer("Example:\n  takt delete kjv-gpt");
}

}  // namespace takt::cli
