// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/steps.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::ListedStep;

// Size and time of a step's directory on the disk.
struct OnDisk {
  absl::Time time;  // of the last change
  std::int64_t bytes = 0;
};

OnDisk Look(const std::string& path) {
  OnDisk found;
  const auto note_time = [&found](const struct stat& info) {
    found.time = std::max(found.time, absl::TimeFromTimespec(info.st_mtim));
  };
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) note_time(info);
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (stat(it->path().c_str(), &info) != 0) continue;  // it was removed meanwhile
    found.bytes += info.st_size;
    note_time(info);
  }
  return found;
}

// Returns the name of the directory that `latest` names. Empty: it names none.
std::string LatestIn(const std::string& directory) {
  std::error_code error;
  const fs::path target =
      fs::read_symlink(absl::StrCat(directory, "/", checkpoint::kLatestLink), error);
  return error ? "" : target.filename().string();
}

absl::StatusOr<ExitCode> List(const Context& context, const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<ListedStep> steps, AllSteps(options));
  const std::string latest = LatestIn(options.directory);
  Json list = Json::array();
  Table table({"STEP", "TIME", "SIZE", "STATE", "DIRECTORY"});
  for (const ListedStep& step : steps) {
    const OnDisk found = Look(PathOf(options, step));
    const bool is_latest = step.name == latest;
    list.push_back({{"step", step.step.value()},
                    {"directory", step.name},
                    {"state", checkpoint::StepStateName(step.state)},
                    {"reason", step.reason},
                    {"latest", is_latest},
                    {"time", absl::FormatTime(absl::RFC3339_sec, found.time, absl::UTCTimeZone())},
                    {"bytes", found.bytes},
                    {"job", step.manifest.has_value() ? Json(step.manifest->job) : Json(nullptr)}});
    table.Add({absl::StrCat(step.step.value()),
               absl::FormatTime("%Y-%m-%d %H:%M:%S", found.time, absl::LocalTimeZone()),
               FormatBytes(static_cast<double>(found.bytes)), checkpoint::StepStateName(step.state),
               absl::StrCat(step.name, is_latest ? "  (latest)" : "")});
  }
  if (context.json()) {
    PrintJson(context, {{"directory", options.directory}, {"checkpoints", list}});
  } else {
    context.terminal.out << table.ToString() << std::flush;
    for (const ListedStep& step : steps) {
      if (!step.reason.empty()) Say(context, absl::StrCat("damaged: ", step.reason));
    }
  }
  return ExitCode::kDone;
}

}  // namespace

void AddCheckpointList(CLI::App& checkpoint, Context& context) {
  AddCommand<CheckpointOptions>(checkpoint, context, "list", "List checkpoints, newest first",
                                AddDirectory, List)
      ->footer(
          "States: complete; partial (being written, or left behind); replaced (moved out of the "
          "way of a newer\none of the same step); damaged (a file is missing or has another size, "
          "or the manifest cannot be read).\nWhat is damaged inside a file is found by "
          "`takt checkpoint verify`.\n\nExamples:\n"
          "  takt checkpoint list checkpoints\n"
          "  takt -o json checkpoint list checkpoints | jq '.checkpoints[] | "
          "select(.latest).step'");
}

}  // namespace takt::cli
