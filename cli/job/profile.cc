// SPDX-License-Identifier: Apache-2.0
// `takt profile`: measures what plans of a job need.
#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/client/connect.h"
#include "cli/job/attached_workers.h"
#include "cli/job/commands.h"
#include "cli/job/job_input.h"
#include "cli/job/measure.h"
#include "cli/job/profile_text.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"

namespace takt::cli {
namespace {

struct ProfileCommand {
  JobInput job;
  double seconds = 3;
};

absl::StatusOr<profile::Profile> MeasureUntilInterrupted(Client& client,
                                                         const MeasureOptions& options) {
  Client::StreamStop stop;
  const SignalThread signals({SIGINT, SIGTERM, SIGHUP}, [&](int) { stop.Stop(); });
  return Measure(client, stop, options);
}

absl::StatusOr<ExitCode> ProfileJob(const Context& context, const ProfileCommand& command) {
  ASSIGN_OR_RETURN(const PreparedJob input, PrepareJobToSubmit(context, command.job));
  ASSIGN_OR_RETURN(const config::JobSpec job, config::ToJobSpec(input.spec));
  if (job.model.family == model::Family::kEmulated) {
    Say(context, absl::StrCat("nothing to measure: ", job.name,
                              " is emulated, and its file says what its layers take"));
    if (context.json()) PrintProfile(context, {.layers = {}, .conditions = {}, .profile = {}});
    return ExitCode::kDone;
  }
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client->ListWorkers());
  ASSIGN_OR_RETURN(const plan::PlanOptions options, OptionsForWorkers(job, workers));
  const absl::StatusOr<profile::Profile> profile =
      MeasureUntilInterrupted(*client, {.job = job,
                                        .workers = options,
                                        .seconds = command.seconds,
                                        .say = [&](std::string_view line) { Say(context, line); }});
  if (!profile.ok()) return input.locate(profile.status());
  PrintProfile(context, {.layers = LayersOf(job, options.device),
                         .conditions = ConditionsOf(job, options),
                         .profile = *profile});
  return ExitCode::kDone;
}

}  // namespace

void AddProfile(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<ProfileCommand>(
      app, context, "profile", "Measure what the layers of a job take on the workers",
      [](CLI::App& app, ProfileCommand& options) {
        AddJobInput(app, options.job, "parallelism.pipeline=2");
        app.add_option("--time", options.seconds, "About how long each short job trains")
            ->type_name("SECONDS")
            ->check(CLI::Range(0.1, 600.0))
            ->capture_default_str();
      },
      ProfileJob);
  command->footer(
      "The command runs short jobs on idle workers: one for each number of ranks that may share a\n"
      "host (the job's own if it names its pipeline, else 1, 2, 4, ...), and one for messages.\n"
      "They train a few of its blocks on its data, save nothing, and are deleted at their ends.\n"
      "`takt plan` and the coordinator use what they measure for every job with such layers, and\n"
      "the steps of real jobs correct it. Ctrl-C cancels the short job.\n\n"
      "Examples:\n"
      "  takt profile job.yaml && takt plan job.yaml\n"
      "  takt profile job.yaml --set parallelism.pipeline=4 --time 10\n"
      "  takt profile job.yaml -o json");
}

}  // namespace takt::cli
