// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/base/report.h"
#include "cli/schedule/commands.h"
#include "cli/schedule/schedule_source.h"
#include "cli/schedule/simulated_schedule.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/schedule/validator.h"

namespace takt::cli {
namespace {

struct VerifyOptions {
  std::string file;
  std::string placement;
  int memory = 0;
};

absl::StatusOr<schedule::Schedule> Check(const std::string& text, const VerifyOptions& options) {
  ASSIGN_OR_RETURN(schedule::Schedule schedule,
                   ParseSchedule(text, options.file, options.placement));
  // Simulating includes the proof of completion, for which any costs serve.
  RETURN_IF_ERROR(
      SimulateSchedule(schedule, StepCosts(), {.max_in_flight = options.memory}).status());
  return schedule;
}

absl::StatusOr<ExitCode> Verify(const Context& context, const VerifyOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadScheduleFile(options.file));
  const absl::StatusOr<schedule::Schedule> schedule = Check(text, options);
  if (!schedule.ok()) {
    if (context.json()) {
      PrintJson(context, {{"ok", false},
                          {"message", std::string(schedule.status().message())},
                          {"violations", ViolationsJson(schedule.status())}});
    } else {
      PrintError(context, schedule.status());
    }
    return ExitCode::kFailed;
  }
  const std::vector<int> peaks = schedule::PeakInFlight(*schedule);
  const std::vector<std::string> warnings = schedule::Warnings(*schedule);
  if (context.json()) {
    PrintJson(context, {{"ok", true},
                        {"ranks", schedule->num_ranks()},
                        {"stages", schedule->num_stages},
                        {"microbatches", schedule->num_microbatches},
                        {"placement", schedule::PlacementName(schedule->placement)},
                        {"peak_in_flight", peaks},
                        {"warnings", warnings}});
    return ExitCode::kDone;
  }
  context.terminal.out << absl::StrCat("OK: ", Counted(schedule->num_ranks(), "rank"), ", ",
                                       Counted(schedule->num_stages, "stage"), ", ",
                                       Counted(schedule->num_microbatches, "microbatch"),
                                       "; peak in flight by rank: ", absl::StrJoin(peaks, " "),
                                       "\n")
                       << std::flush;
  for (const std::string& warning : warnings) Say(context, absl::StrCat("warning: ", warning));
  return ExitCode::kDone;
}

}  // namespace

void AddScheduleVerify(CLI::App& schedule, Context& context) {
  CLI::App* command = AddCommand<VerifyOptions>(
      schedule, context, "verify", "Check a schedule by every rule and prove that it completes",
      [](CLI::App& app, VerifyOptions& options) {
        app.add_option("FILE", options.file, "CSV")->type_name("FILE.csv")->required();
        app.add_option("--placement", options.placement,
                       "Where stages are; default: as the rows of the file show")
            ->check(CLI::IsMember({"loop", "v", "bidirectional"}));
        app.add_option("--memory", options.memory,
                       "Microbatch-chunks that a rank may hold in flight; default: no limit")
            ->type_name("K")
            ->check(CLI::PositiveNumber);
      },
      Verify);
  command->footer(
      "Exit status 1 and the reason, with the guilty cell marked, if a rule is broken; 2 if there "
      "is no\n"
      "such file.\n\nExample:\n  takt schedule show gpipe --ranks 2 --microbatches 4 -f csv > "
      "mine.csv\n"
      "  takt schedule verify mine.csv");
}

}  // namespace takt::cli
