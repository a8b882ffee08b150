// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "cli/client/connect.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/worker_text.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

absl::StatusOr<ExitCode> Workers(const Context& context) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client->ListWorkers());
  PrintWorkers(context, workers);
  return ExitCode::kDone;
}

void AddWorkers(CLI::App& parent, Context& context, const std::string& name) {
  CLI::App* const workers =
      AddAction(parent, context, name, "List workers, what they hold and what they can do",
                [&context] { return Workers(context); });
  workers->footer(
      "With -o json one object {\"workers\": [...]}. A worker without \"device\" computes on its "
      "cores,\none without \"threads\" gives a rank an even share of them, and \"rank\" only "
      "counts beside\n\"job\".\n\n"
      "Example:\n  takt worker list");
}

}  // namespace

void AddWorker(CLI::App& app, Context& context) {
  CLI::App* group =
      app.add_subcommand("worker", "List workers, take them out of service and back into it");
  group->footer("Examples:\n  takt worker list\n  takt worker drain worker-2");
  AddWorkers(*group, context, "list");
  AddDrain(*group, context);
}

void AddWorkerShortForms(CLI::App& app, Context& context) {
  AddWorkers(app, context, "workers");
  AddDrain(app, context);
}

}  // namespace takt::cli
