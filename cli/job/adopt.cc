// SPDX-License-Identifier: Apache-2.0
#include "cli/job/commands.h"
#include "cli/job/named_job.h"

namespace takt::cli {

void AddAdopt(CLI::App& app, Context& context) {
  AddOnJob(app, context, "adopt", "Take over a job that workers hold and the coordinator lost",
           PrintResultOf(&Client::AdoptJob))
      ->footer(
          "The job trains on as it is. Its steps are logged from now on.\n"
          "First make sure that no other coordinator has its state: the job obeys this one "
          "afterwards.\n`takt jobs` lists such jobs as HELD, and why one cannot be adopted yet.\n\n"
          "Example:\n  takt adopt kjv-gpt");
}

}  // namespace takt::cli
