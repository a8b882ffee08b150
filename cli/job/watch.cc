// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/follow.h"
#include "cli/job/live_watch.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct WatchOptions {
  std::string name;
  std::int64_t after_step = 0;
  bool lines = false;
};

absl::StatusOr<ExitCode> Watch(const Context& context, const WatchOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  if (!options.lines && CanWatchLive(context))
    return WatchLive(context, *client, options.name, options.after_step);
  return WatchUntilEnd(context, *client, options.name, options.after_step);
}

}  // namespace

void AddWatch(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<WatchOptions>(
      app, context, "watch", "Show a job until it ends: live on a terminal, else lines",
      [](CLI::App& app, WatchOptions& options) {
        app.add_option("JOB", options.name, "Job")->type_name("")->required();
        app.add_option("--after-step", options.after_step,
                       "Start after this step; 0: start with the first")
            ->type_name("N")
            ->check(CLI::NonNegativeNumber);
        app.add_flag("--lines", options.lines, "Print lines of text on a terminal, too");
      },
      Watch);
  command->footer(
      "On a terminal this is a live view: progress, the curve of the loss, where the time of a "
      "step "
      "goes,\nhow busy each stage is, and its workers. Elsewhere, and with --lines, it prints a "
      "line "
      "now and then,\nand with -o json one object for each step. It honours NO_COLOR and "
      "TERM=dumb. "
      "It exits with the job's\nverdict. Ctrl-C, or a terminal that closes, ends the command but "
      "not "
      "the job (exit status 6).\n\n"
      "Examples:\n"
      "  takt watch kjv-gpt\n"
      "  takt -o json watch kjv-gpt --after-step 100 | jq -r '[.step, .loss] | @tsv'");
}

}  // namespace takt::cli
