// SPDX-License-Identifier: Apache-2.0
#include "cli/job/commands.h"
#include "cli/job/follow.h"
#include "cli/job/named_job.h"

namespace takt::cli {

void AddWait(CLI::App& app, Context& context) {
  AddOnJob(app, context, "wait", "Wait until a job has ended", WaitUntilEnd)
      ->footer(
          "A job that is PAUSED has not ended. At its end the command prints the job and exits "
          "with its verdict.\nCtrl-C ends the command but not the job (exit status 6).\n\n"
          "Example:\n  takt wait kjv-gpt && echo trained");
}

}  // namespace takt::cli
