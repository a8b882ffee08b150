// SPDX-License-Identifier: Apache-2.0
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/worker_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct DrainOptions {
  std::string worker;
};

using Change = absl::StatusOr<v1::Worker> (Client::*)(const std::string&);

void Add(CLI::App& app, Context& context, const std::string& name, const std::string& summary,
         const std::string& footer, Change change) {
  CLI::App* command = AddCommand<DrainOptions>(
      app, context, name, summary,
      [](CLI::App& app, DrainOptions& options) {
        app.add_option("WORKER", options.worker, "Worker")->type_name("")->required();
      },
      [change](const Context& context, const DrainOptions& options) -> absl::StatusOr<ExitCode> {
        ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
        ASSIGN_OR_RETURN(const v1::Worker worker, ((*client).*change)(options.worker));
        if (context.json()) {
          PrintJson(context, ToJson(worker));
        } else {
          PrintWorkers(context, {worker});
        }
        return ExitCode::kDone;
      });
  command->footer(footer + "Example:\n  takt worker " + name + " worker-2");
}

}  // namespace

void AddDrain(CLI::App& app, Context& context) {
  Add(app, context, "drain", "Take a worker out of service",
      "The worker gets no new job. A job that it holds is saved at its next step and goes on with "
      "other workers;\na job without a checkpoint section is finished first. `takt workers` shows "
      "the worker as IDLE when it is free.\n\n",
      &Client::DrainWorker);
  Add(app, context, "undrain", "Let a drained or quarantined worker take jobs again",
      "What is held against the worker is forgotten.\n\n", &Client::UndrainWorker);
}

}  // namespace takt::cli
