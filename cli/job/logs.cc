// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/base/text.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// This is longer than any job that a user follows to its end.
constexpr absl::Duration kFollowTimeout = absl::Hours(24 * 7);

struct LogsOptions {
  std::string name;
  bool follow = false;
  std::vector<int> ranks;
};

bool PrintLogLine(const Context& context, const v1::LogLine& line, bool flush) {
  if (context.json()) {
    PrintJson(context, ToJson(line));
  } else {
    const absl::Time time = absl::FromUnixNanos(line.unix_nanos());
    context.terminal.out << absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone())
                         << ' ' << line.worker() << " rank=" << line.rank()
                         << " step=" << line.step() << ' ' << OneLine(line.level()) << ' '
                         << OneLine(line.text()) << '\n';
    if (flush) context.terminal.out << std::flush;
  }
  return context.terminal.out.good();
}

absl::StatusOr<ExitCode> Logs(const Context& context, const LogsOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  Client::StreamStop stop;
  const SignalThread signals({SIGINT, SIGTERM}, [&](int) { stop.Stop(); });
  v1::GetJobLogsRequest request;
  request.set_name(options.name);
  request.set_follow(options.follow);
  request.mutable_ranks()->Add(options.ranks.begin(), options.ranks.end());
  const absl::Status status = client->GetJobLogs(
      request, options.follow ? kFollowTimeout : context.timeout(), stop,
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
        app.add_option("JOB", options.name, "Job")->type_name("")->required();
        app.add_flag("-f,--follow", options.follow, "Print new lines until the job has ended");
        app.add_option("--rank", options.ranks, "Print only lines of these ranks")
            ->type_name("N[,N...]")
            ->delimiter(',')
            ->check(CLI::NonNegativeNumber);
      },
      Logs);
  command->footer(
      "Time (UTC), worker, rank, the last step that the rank had completed, level, text. The\n"
      "coordinator keeps the newest 10000 lines of a job until it is deleted, also when the worker "
      "is "
      "gone.\nWith -o json each line is one object: worker, rank, step, level, text, "
      "unix_nanos.\n\n"
      "Examples:\n  takt logs kjv-gpt\n  takt logs -f --rank 0,3 kjv-gpt");
}

}  // namespace takt::cli
