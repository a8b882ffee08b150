// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/steps.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

using checkpoint::FileEntry;
using checkpoint::ListedStep;

struct Verdict {
  std::int64_t bytes = 0;             // read
  std::vector<std::string> problems;  // file and reason
};

// Verifies every file of the step, also after a damaged one.
Verdict Verify(const std::string& path, const ListedStep& step) {
  if (!step.manifest.has_value()) return {.problems = {step.reason}};
  Verdict verdict;
  for (const FileEntry& file : step.manifest->files) {
    verdict.bytes += file.bytes;
    if (const absl::Status status = checkpoint::VerifyFile(path, file); !status.ok())
      verdict.problems.emplace_back(status.message());
  }
  if (!verdict.problems.empty()) return verdict;
  // Files that are as they were written can still have a header that nothing reads.
  const absl::Status opened = checkpoint::StepFiles::Open(path).status();
  if (!opened.ok()) verdict.problems.emplace_back(opened.message());
  return verdict;
}

absl::StatusOr<ExitCode> VerifySteps(const Context& context, const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<ListedStep> steps, FinishedSteps(options));
  Json list = Json::array();
  bool all_good = true;
  for (const ListedStep& step : steps) {
    const Verdict verdict = Verify(PathOf(options, step), step);
    const bool good = verdict.problems.empty();
    all_good = all_good && good;
    list.push_back({{"step", step.step.value()},
                    {"directory", step.name},
                    {"ok", good},
                    {"bytes", verdict.bytes},
                    {"problems", verdict.problems}});
    if (context.json()) continue;
    context.terminal.out << step.name << ": "
                         << (good ? absl::StrCat("verified, ",
                                                 FormatBytes(static_cast<double>(verdict.bytes)))
                                  : "damaged")
                         << std::endl;
    for (const std::string& problem : verdict.problems) {
      PrintError(context, absl::DataLossError(problem));
    }
  }
  if (context.json()) {
    PrintJson(context, {{"directory", options.directory}, {"ok", all_good}, {"checkpoints", list}});
  }
  return all_good ? ExitCode::kDone : ExitCode::kFailed;
}

}  // namespace

void AddCheckpointVerify(CLI::App& checkpoint, Context& context) {
  AddCommand<CheckpointOptions>(
      checkpoint, context, "verify", "Read checkpoints and compare every file with its hash",
      [](CLI::App& app, CheckpointOptions& options) {
        AddDirectory(app, options);
        AddStep(app, options, "all that are finished");
      },
      VerifySteps)
      ->footer(
          "Exit status 1 if one is damaged, with the file and the reason; 4 if there is none.\n\n"
          "Examples:\n"
          "  takt checkpoint verify checkpoints\n"
          "  takt checkpoint verify checkpoints --step 100");
}

}  // namespace takt::cli
