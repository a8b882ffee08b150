// SPDX-License-Identifier: Apache-2.0
#include "cli/base/report.h"
#include "cli/job/commands.h"
#include "cli/job/named_job.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

absl::StatusOr<ExitCode> Abandon(const Context& context, Client& client, const std::string& job) {
  RETURN_IF_ERROR(client.AbandonJob(job));
  if (context.json()) PrintJson(context, {{"abandoned", job}});
  return ExitCode::kDone;
}

}  // namespace

void AddAbandon(CLI::App& app, Context& context) {
  AddOnJob(app, context, "abandon", "End a job that workers hold and the coordinator lost", Abandon)
      ->footer(
          "Its workers stop the job and are idle again. Its checkpoints stay.\n"
          "`takt jobs` lists such jobs as HELD; `takt adopt` keeps one instead.\n\n"
          "Example:\n  takt abandon kjv-gpt");
}

}  // namespace takt::cli
