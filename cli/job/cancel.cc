// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct CancelOptions {
  std::string name;
};

absl::StatusOr<ExitCode> Cancel(const Context& context, const CancelOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const v1::Job job, client->CancelJob(options.name));
  PrintJob(context, job);
  return ExitCode::kDone;
}

}  // namespace

void AddCancel(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<CancelOptions>(
      app, context, "cancel", "End a job",
      [](CLI::App& app, CancelOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
      },
      Cancel);
  command->footer(
      "The workers stop the job and are idle again. Its step log stays.\n\nExample:\n  takt "
      "cancel kjv-gpt");
}

}  // namespace takt::cli
