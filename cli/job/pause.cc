// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct PauseOptions {
  std::string name;
};

using Change = absl::StatusOr<v1::Job> (Client::*)(const std::string&);

void Add(CLI::App& app, Context& context, const std::string& name, const std::string& summary,
         const std::string& footer, Change change) {
  CLI::App* command = AddCommand<PauseOptions>(
      app, context, name, summary,
      [](CLI::App& app, PauseOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
      },
      [change](const Context& context, const PauseOptions& options) -> absl::StatusOr<ExitCode> {
        ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
        ASSIGN_OR_RETURN(const v1::Job job, ((*client).*change)(options.name));
        PrintJob(context, job);
        return ExitCode::kDone;
      });
  command->footer(footer + "\n\nExample:\n  takt " + name + " kjv-gpt");
}

}  // namespace

void AddPause(CLI::App& app, Context& context) {
  Add(app, context, "pause", "Pause a job at its next step, with a checkpoint",
      "The command answers at once. The job is PAUSED, and its workers are free, when its "
      "checkpoint "
      "is complete.\nOnly a job with a checkpoint section can be paused.",
      &Client::PauseJob);
  Add(app, context, "resume", "Put a paused job back into the queue",
      "It goes on from its newest checkpoint, on whatever workers are free.", &Client::ResumeJob);
}

}  // namespace takt::cli
