// SPDX-License-Identifier: Apache-2.0
#include "cli/job/commands.h"
#include "cli/job/named_job.h"

namespace takt::cli {

void AddJob(CLI::App& app, Context& context) {
  AddOnJob(app, context, "job", "Show one job", PrintResultOf(&Client::GetJob))
      ->footer("Example:\n  takt job kjv-gpt");
}

}  // namespace takt::cli
