// SPDX-License-Identifier: Apache-2.0
#include "cli/local/commands.h"

#include "common/config/job_spec.h"

namespace takt::cli {

void AddProcessOptions(CLI::App& command, ProcessOptions& options) {
  command
      .add_option("--device", options.device,
                  "What workers may compute on: auto (GPUs if there are any), cpu or cuda; more "
                  "workers than GPUs share them")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--threads", options.threads,
                  "Compute threads of a worker; 0: the cores divided by the workers")
      ->type_name("N")
      ->check(CLI::Range(0, config::kMaxThreads));
}

void AddLocal(CLI::App& app, Context& context) {
  CLI::App* local = app.add_subcommand("local", "Train on this machine");
  local->footer(
      "Examples:\n"
      "  takt local run job.yaml                   one job, start to end\n"
      "  takt local up --workers 4                 a cluster in the background\n"
      "  takt submit job.yaml && takt local down");
  AddLocalRun(*local, context);
  AddLocalUp(*local, context);
  AddLocalDown(*local, context);
}

}  // namespace takt::cli
