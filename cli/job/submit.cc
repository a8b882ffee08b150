// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/follow.h"
#include "cli/job/job_input.h"
#include "cli/job/job_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct SubmitOptions {
  JobInput job;
  bool wait = false;
  bool validate_only = false;
};

absl::StatusOr<ExitCode> Submit(const Context& context, const SubmitOptions& options) {
  ASSIGN_OR_RETURN(const PreparedJob input, PrepareJobToSubmit(context, options.job));
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  const std::string& name = input.spec.name();
  const absl::StatusOr<v1::Job> job = client->SubmitJob(input.spec, options.validate_only);
  if (!job.ok()) return input.locate(job.status());
  if (options.validate_only) {
    Say(context, absl::StrCat(name, " is valid"));
  } else if (options.wait) {
    return WaitUntilEnd(context, *client, name);
  } else {
    Say(context, absl::StrCat("submitted; see it with: takt watch ", name));
  }
  PrintJob(context, *job);
  return ExitCode::kDone;
}

}  // namespace

void AddSubmit(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<SubmitOptions>(
      app, context, "submit", "Submit a job to the coordinator",
      [](CLI::App& app, SubmitOptions& options) {
        AddJobInput(app, options.job, "parallelism.pipeline=2");
        auto* wait =
            app.add_flag("--wait", options.wait, "Wait for the end; exit with the job's verdict");
        app.add_flag("--validate-only", options.validate_only,
                     "Refuse what a real call would refuse, and change nothing")
            ->excludes(wait);
      },
      Submit);
  command->footer(
      "Data paths are under the workers' --data-root (relative to the job's file for a cluster of\n"
      "`takt local up`). A config.json or a schedule file that the job names is read here, beside "
      "the job.\n\n"
      "Examples:\n"
      "  takt submit job.yaml\n"
      "  takt submit job.yaml --set steps=1000 --set optimizer.adamw.learning_rate=1e-3 --wait\n"
      "  takt submit job.yaml --validate-only");
}

}  // namespace takt::cli
