// SPDX-License-Identifier: Apache-2.0
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

}  // namespace

void AddWorkers(CLI::App& app, Context& context) {
  AddAction(app, context, "workers", "List workers, what they hold and what they can do",
            [&context] { return Workers(context); })
      ->footer("With -o json one object {\"workers\": [...]}.\n\nExample:\n  takt workers");
}

}  // namespace takt::cli
