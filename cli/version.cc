// SPDX-License-Identifier: Apache-2.0
#include "common/base/version.h"
#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/commands.h"

namespace takt::cli {
namespace {

// Also prints the coordinator's version if one answers. If none answers, that is no error.
absl::StatusOr<ExitCode> Version(const Context& context) {
  absl::StatusOr<v1::GetVersionResponse> coordinator = absl::UnavailableError("");
  if (const auto client = ConnectToCoordinator(context); client.ok()) {
    coordinator = (*client)->GetVersion();
  }
  if (context.json()) {
    Json json = VersionJson();
    if (coordinator.ok()) json["coordinator"] = ToJson(*coordinator);
    PrintJson(context, json);
    return ExitCode::kDone;
  }
  context.terminal.out << "takt " << kTaktVersion << " (protocol " << kProtocolVersion << ")\n"
                       << "built in: " << kTaktBuild << "\n";
  if (coordinator.ok()) {
    context.terminal.out << "coordinator " << coordinator->program_version() << " (protocol "
                         << coordinator->protocol_version() << ")\n";
    if (!coordinator->build().empty())
      context.terminal.out << "built in: " << coordinator->build() << "\n";
  }
  return ExitCode::kDone;
}

}  // namespace

Json VersionJson() {
  return {{"version", kTaktVersion}, {"protocol_version", kProtocolVersion}, {"build", kTaktBuild}};
}

void AddVersion(CLI::App& app, Context& context) {
  AddAction(
      app, context, "version",
      "Print the version of takt and what was built in, and of the coordinator if one answers",
      [&context] { return Version(context); })
      ->footer("Example:\n  takt version");
}

}  // namespace takt::cli
