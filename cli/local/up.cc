// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/client/local_address.h"
#include "cli/local/commands.h"
#include "cli/local/local_cluster.h"
#include "cli/local/local_state.h"
#include "common/base/counted.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct UpOptions : ProcessOptions {
  std::string state;
  int workers = 4;
};

absl::StatusOr<ExitCode> Up(const Context& context, const UpOptions& options) {
  ASSIGN_OR_RETURN(
      LocalState state,
      LocalState::Open(options.state.empty() ? DefaultStateDirectory(context) : options.state));
  ASSIGN_OR_RETURN(const auto cluster,
                   LocalCluster::Start(state, {.program_directory = context.program_directory,
                                               .num_workers = options.workers,
                                               .threads = options.threads,
                                               .device = options.device,
                                               .kernel_plans = KernelPlanDirectory(context),
                                               .die_with_parent = false}));
  RETURN_IF_ERROR(cluster->WaitForWorkers());
  RETURN_IF_ERROR(state.WriteAddress());
  cluster->Leave();
  if (context.json()) {
    PrintJson(context, {{"coordinator", state.coordinator_address()},
                        {"state", state.directory()},
                        {"workers", options.workers}});
    return ExitCode::kDone;
  }
  context.terminal.out << state.coordinator_address() << std::endl;
  const std::string flags = options.state.empty() ? "" : " --state " + options.state;
  Say(context,
      absl::StrCat("a coordinator and ", Counted(options.workers, "worker"), " run; logs are in ",
                   state.directory(), "/logs; stop them with: takt local down", flags));
  if (!options.state.empty()) {
    Say(context, absl::StrCat("other commands find them with: export TAKT_COORDINATOR=",
                              state.coordinator_address()));
  }
  return ExitCode::kDone;
}

struct DownOptions {
  std::string state;
};

absl::StatusOr<ExitCode> Down(const Context& context, const DownOptions& options) {
  const std::string directory =
      options.state.empty() ? DefaultStateDirectory(context) : options.state;
  std::vector<Process> processes = FindLocalProcesses(directory);
  const auto count = processes.size();
  StopLocalProcesses(processes);
  if (LocalClusterRuns(directory)) {
    return absl::FailedPreconditionError(
        absl::StrCat("something else still runs on ", directory, ": takt local run?"));
  }
  std::error_code error;
  std::filesystem::remove_all(directory + "/pids", error);
  RemoveAddress(directory);
  if (context.json()) PrintJson(context, {{"state", directory}, {"stopped", count}});
  Say(context, count == 0
                   ? absl::StrCat("nothing runs on ", directory)
                   : absl::StrCat("stopped ", count, " processes; the state stays in ", directory));
  return ExitCode::kDone;
}

}  // namespace

void AddLocalUp(CLI::App& local, Context& context) {
  CLI::App* command = AddCommand<UpOptions>(
      local, context, "up", "Start a coordinator and workers in the background",
      [](CLI::App& app, UpOptions& options) {
        app.add_option("--state", options.state, "Directory for state, logs and the socket")
            ->type_name("DIR")
            ->default_str("~/.local/state/takt/local");
        app.add_option("--workers", options.workers, "Worker processes")
            ->type_name("N")
            ->check(CLI::Range(1, 1024))
            ->capture_default_str();
        AddProcessOptions(app, options);
      },
      Up);
  command->footer("Examples:\n  takt local up\n  takt local up --workers 8 --state /tmp/cluster");
}

void AddLocalDown(CLI::App& local, Context& context) {
  CLI::App* command = AddCommand<DownOptions>(
      local, context, "down", "Stop what `takt local up` started",
      [](CLI::App& app, DownOptions& options) {
        app.add_option("--state", options.state, "The directory that `takt local up` used")
            ->type_name("DIR")
            ->default_str("~/.local/state/takt/local");
      },
      Down);
  command->footer("Example:\n  takt local down");
}

}  // namespace takt::cli
