// SPDX-License-Identifier: Apache-2.0
#include "cli/job/commands.h"
#include "cli/job/named_job.h"

namespace takt::cli {

void AddCancel(CLI::App& app, Context& context) {
  AddOnJob(app, context, "cancel", "End a job", PrintResultOf(&Client::CancelJob))
      ->footer(
          "The workers stop the job and are idle again. Its step log stays.\n\nExample:\n  takt "
          "cancel kjv-gpt");
}

}  // namespace takt::cli
