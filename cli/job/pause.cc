// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/follow.h"
#include "cli/job/job_text.h"
#include "cli/job/named_job.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct PauseOptions {
  std::string job;
  bool wait = false;
};

// Returns the job when it is PAUSED or has ended.
absl::StatusOr<v1::Job> AwaitPause(const Context& context, Client& client,
                                   const std::string& name) {
  Client::StreamStop stop;
  std::optional<v1::Job> paused;
  absl::StatusOr<v1::Job> ended =
      FollowUntilInterrupted(client, stop,
                             {.job = name,
                              .on_job =
                                  [&](const v1::Job& job) {
                                    if (job.state() != v1::JOB_STATE_PAUSED) return;
                                    paused = job;
                                    stop.Stop();
                                  },
                              .say = [&](std::string_view line) { Say(context, line); }});
  if (paused.has_value()) return *std::move(paused);
  return ended;
}

absl::StatusOr<ExitCode> Pause(const Context& context, const PauseOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(v1::Job job, client->PauseJob(options.job));
  if (options.wait) {
    ASSIGN_OR_RETURN(job, AwaitPause(context, *client, options.job));
  }
  PrintJob(context, job);
  if (!options.wait || job.state() == v1::JOB_STATE_PAUSED) return ExitCode::kDone;
  Say(context, absl::StrCat(options.job, " ended before it could be paused"));
  return VerdictOf(job);
}

}  // namespace

void AddPause(CLI::App& app, Context& context) {
  AddCommand<PauseOptions>(
      app, context, "pause", "Pause a job at its next step, with a checkpoint",
      [](CLI::App& command, PauseOptions& options) {
        command.add_option("JOB", options.job, "Job")->type_name("")->required();
        command.add_flag("--wait", options.wait, "Wait until the job is PAUSED");
      },
      Pause)
      ->footer(
          "The command answers at once. The job is PAUSED, and its workers are free, when its "
          "checkpoint is complete.\nWith --wait the command ends then, or when the job has ended "
          "before, with its verdict.\nOnly a job that saves checkpoints in files can be paused.\n\n"
          "Examples:\n"
          "  takt pause kjv-gpt\n"
          "  takt pause kjv-gpt --wait && takt local down");
  AddOnJob(app, context, "resume", "Put a paused job back into the queue",
           PrintResultOf(&Client::ResumeJob))
      ->footer(
          "It goes on from its newest checkpoint, on whatever workers are free.\n\n"
          "Example:\n  takt resume kjv-gpt");
}

}  // namespace takt::cli
