// SPDX-License-Identifier: Apache-2.0
#include "cli/job/commands.h"
#include "cli/job/named_job.h"

namespace takt::cli {

void AddPause(CLI::App& app, Context& context) {
  AddOnJob(app, context, "pause", "Pause a job at its next step, with a checkpoint",
           PrintResultOf(&Client::PauseJob))
      ->footer(
          "The command answers at once. The job is PAUSED, and its workers are free, when its "
          "checkpoint is complete.\nOnly a job with a checkpoint section can be paused.\n\n"
          "Example:\n  takt pause kjv-gpt");
  AddOnJob(app, context, "resume", "Put a paused job back into the queue",
           PrintResultOf(&Client::ResumeJob))
      ->footer(
          "It goes on from its newest checkpoint, on whatever workers are free.\n\n"
          "Example:\n  takt resume kjv-gpt");
}

}  // namespace takt::cli
