// SPDX-License-Identifier: Apache-2.0
#include "worker/session/checkpoint_committer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/data/data_root.h"
#include "worker/checkpoint/commit.h"

namespace takt::session {
namespace {

// A failure here only wastes disk space.
void RemoveEarlierPartials(worker_checkpoint::FileSystem& files, const std::string& directory,
                           const control::CommitCheckpoint& request) {
  const auto names = files.List(directory);
  if (!names.ok()) return;
  const std::string suffix = absl::StrCat(request.key.job, "-", request.key.generation.value());
  for (const std::string& name : *names) {
    const auto found = checkpoint::ParseStepDirectoryName(name);
    if (!found.has_value() || found->kind != checkpoint::StepDirectoryKind::kPartial) continue;
    if (found->suffix != suffix || found->step >= request.step) continue;
    worker_checkpoint::RemovePartial(files, directory, found->step, request.key.job,
                                     request.key.generation)
        .IgnoreError();
  }
}

}  // namespace

absl::Status CommitCheckpoint(worker_checkpoint::FileSystem& files, const std::string& root,
                              const control::CommitCheckpoint& request) {
  ASSIGN_OR_RETURN(const std::string directory,
                   data::ResolveUnderRoot("checkpoint.directory", root, request.directory));
  if (request.manifest.empty()) {
    return worker_checkpoint::RemovePartial(files, directory, request.step, request.key.job,
                                            request.key.generation);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                   worker_checkpoint::Commit(files, directory, request.keep, request.manifest));
  for (const std::string& note : notes) {
    Log(LogLevel::kInfo, "checkpoint directory",
        {{"job", request.key.job}, {"directory", directory}, {"note", note}});
  }
  RemoveEarlierPartials(files, directory, request);
  return absl::OkStatus();
}

CheckpointCommitter::CheckpointCommitter(
    std::function<absl::Status(const control::CommitCheckpoint&)> commit,
    std::function<void(const control::CheckpointCommitted&)> answer)
    : commit_(std::move(commit)), answer_(std::move(answer)) {}

void CheckpointCommitter::Add(control::CommitCheckpoint request) {
  thread_.Add([this, request = std::move(request)] { Run(request); });
}

void CheckpointCommitter::Run(const control::CommitCheckpoint& request) const {
  const absl::Status status = commit_(request);
  const bool ok = status.ok();
  const std::string error = ok ? "" : status.ToString();
  const char* const outcome = request.manifest.empty() ? "checkpoint given up"
                              : ok                     ? "checkpoint committed"
                                                       : "checkpoint not committed";
  Log(ok ? LogLevel::kInfo : LogLevel::kWarning, outcome,
      {{"job", request.key.job}, {"step", std::to_string(request.step.value())}, {"error", error}});
  answer_({.key = request.key, .step = request.step, .error = error});
}

}  // namespace takt::session
