// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// Longer than a job that anybody follows to its end.
constexpr absl::Duration kFollowTimeout = absl::Hours(24 * 7);

struct LogsOptions {
  std::string name;
  bool follow = false;
};

bool PrintLogLine(const Context& context, const v1::LogLine& line, bool flush) {
  if (context.json()) {
    PrintJson(context, ToJson(line));
  } else {
    const absl::Time time = absl::FromUnixNanos(line.unix_nanos());
    context.terminal.out << absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone())
                         << ' ' << line.worker() << " rank=" << line.rank()
                         << " step=" << line.step() << ' ' << line.level() << ' ' << line.text()
                         << '\n';
    if (flush) context.terminal.out << std::flush;
  }
  return context.terminal.out.good();
}

absl::StatusOr<ExitCode> Logs(const Context& context, const LogsOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  Client::StreamStop stop;
  const SignalThread signals({SIGINT, SIGTERM}, [&](int) { stop.Stop(); });
  const absl::Status status = client->GetJobLogs(
      options.name, options.follow, options.follow ? kFollowTimeout : context.timeout(), stop,
      [&](const v1::LogLine& line) { return PrintLogLine(context, line, options.follow); });
  context.terminal.out << std::flush;
  if (stop.stopped() || !context.terminal.out.good()) return ExitCode::kDone;
  RETURN_IF_ERROR(status);
  return ExitCode::kDone;
}

}  // namespace

void AddLogs(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<LogsOptions>(
      app, context, "logs", "Print what the workers wrote for a job",
      [](CLI::App& app, LogsOptions& options) {
        app.add_option("NAME", options.name, "Job")->type_name("")->required();
        app.add_flag("-f,--follow", options.follow, "Go on until the job has ended");
      },
      Logs);
  command->footer(
      "With -o json one object a line.\n\nExamples:\n  takt logs kjv-gpt\n  takt logs -f kjv-gpt");
}

}  // namespace takt::cli
