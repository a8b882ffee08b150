// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/follow.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct WaitOptions {
  std::string name;
};

absl::StatusOr<ExitCode> Wait(const Context& context, const WaitOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  return WaitUntilEnd(context, *client, options.name);
}

}  // namespace

void AddWait(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<WaitOptions>(
      app, context, "wait", "Wait until a job has ended",
      [](CLI::App& app, WaitOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
      },
      Wait);
  command->footer(
      "A job that is PAUSED has not ended. At its end the command prints the job and exits with "
      "its "
      "verdict.\nCtrl-C ends the command but not the job (exit status 6).\n\n"
      "Example:\n  takt wait kjv-gpt && echo trained");
}

}  // namespace takt::cli
