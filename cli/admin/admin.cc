// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/admin/commands.h"
#include "cli/admin/fetch_backup.h"
#include "cli/admin/maintenance.h"
#include "cli/base/report.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

struct AdminOptions {
  std::string file, state;
};

CLI::Option* AddState(CLI::App& command, AdminOptions& options) {
  return command.add_option("--state", options.state, "Directory of the coordinator's state")
      ->type_name("DIR");
}

// Does what takt-coordinator prints nothing about, and then prints `done` if JSON is wanted.
absl::StatusOr<ExitCode> Maintain(const Context& context, const std::vector<std::string>& arguments,
                                  const std::function<Json()>& done) {
  ASSIGN_OR_RETURN(const ExitCode code, MaintainState(context, arguments));
  if (code == ExitCode::kDone && context.json()) PrintJson(context, done());
  return code;
}

// Describes a file of a state as the backup of a running coordinator does.
Json FileJson(const std::string& file) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  return {{"file", file}, {"size_bytes", error ? Json() : Json(bytes)}};
}

absl::StatusOr<ExitCode> BackUp(const Context& context, const AdminOptions& options) {
  if (options.state.empty()) return FetchBackup(context, options.file);
  return Maintain(context, {"backup", options.state, options.file},
                  [&] { return FileJson(options.file); });
}

absl::StatusOr<ExitCode> Restore(const Context& context, const AdminOptions& options) {
  return Maintain(context, {"restore", options.file, options.state}, [&] {
    Json json = FileJson(options.file);
    json["state"] = options.state;
    return json;
  });
}

absl::StatusOr<ExitCode> ForgetProfile(const Context& context, const AdminOptions& options) {
  return Maintain(context, {"forget-profile", options.state}, [&] {
    Json json = Json::object();
    json["state"] = options.state;
    return json;
  });
}

void AddBackup(CLI::App& admin, Context& context) {
  AddCommand<AdminOptions>(
      admin, context, "backup", "Copy the state to a new file; the coordinator may run",
      [](CLI::App& app, AdminOptions& options) {
        app.add_option("DEST", options.file, "The new file")->type_name("")->required();
        AddState(app, options)
            ->description(
                "Directory of the coordinator's state, on this machine; without it the coordinator "
                "that runs sends the copy");
      },
      BackUp)
      ->footer(
          "The copy is one file of mode 0600, and it was checked. Over TCP only admins get it.\n\n"
          "Examples:\n"
          "  takt admin backup takt.sqlite --coordinator c1:7070\n"
          "  takt admin backup /backup/takt.sqlite --state /var/lib/takt/coordinator");
}

void AddRestore(CLI::App& admin, Context& context) {
  AddCommand<AdminOptions>(
      admin, context, "restore", "Put a copy of the state back; the coordinator must not run",
      [](CLI::App& app, AdminOptions& options) {
        app.add_option("SRC", options.file, "File that `admin backup` made")
            ->type_name("")
            ->required();
        AddState(app, options)->required();
      },
      Restore)
      ->footer(
          "What was there stays beside it as coordinator.sqlite.replaced, and what an earlier "
          "restore replaced as coordinator.sqlite.replaced-1 and so on. The state goes on a "
          "million epochs later.\n\n"
          "Example:\n  takt admin restore /backup/takt.sqlite --state /var/lib/takt/coordinator");
}

void AddFsck(CLI::App& admin, Context& context) {
  AddCommand<AdminOptions>(
      admin, context, "fsck", "Check the state; the coordinator must not run",
      [](CLI::App& app, AdminOptions& options) { AddState(app, options)->required(); },
      [](const Context& context, const AdminOptions& options) {
        return MaintainState(context, {"fsck", options.state, context.json() ? "json" : "text"});
      })
      ->footer(
          "Every damaged row is named by table and key; the exit status is 1 then.\n\n"
          "Example:\n  takt admin fsck --state /var/lib/takt/coordinator");
}

void AddForgetProfile(CLI::App& admin, Context& context) {
  AddCommand<AdminOptions>(
      admin, context, "forget-profile",
      "Drop what was measured on workers; the coordinator must not run",
      [](CLI::App& app, AdminOptions& options) { AddState(app, options)->required(); },
      ForgetProfile)
      ->footer("Example:\n  takt admin forget-profile --state /var/lib/takt/coordinator");
}

}  // namespace

void AddAdmin(CLI::App& app, Context& context) {
  CLI::App* admin = app.add_subcommand("admin", "Back up, restore and check a coordinator's state");
  admin->footer(
      "With --state these commands work on that directory, on its machine, as the user who owns "
      "it.\n\n"
      "Example:\n  takt admin backup takt.sqlite");
  AddBackup(*admin, context);
  AddRestore(*admin, context);
  AddFsck(*admin, context);
  AddForgetProfile(*admin, context);
}

}  // namespace takt::cli
