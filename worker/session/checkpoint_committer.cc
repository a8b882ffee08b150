// SPDX-License-Identifier: Apache-2.0
#include "worker/session/checkpoint_committer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/owner.h"
#include "common/data/data_root.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/ownership.h"

namespace takt::session {
namespace {

void LogNote(const control::CommitCheckpoint& request, const std::string& directory,
             const std::string& note) {
  Log(LogLevel::kInfo, "checkpoint directory",
      {{"job", request.key.job}, {"directory", directory}, {"note", note}});
}

checkpoint::Owner OwnerOf(const control::CommitCheckpoint& request) {
  return {.job_id = request.job_id,
          .job = request.key.job,
          .generation = request.key.generation,
          .epoch = request.epoch};
}

absl::StatusOr<std::string> DirectoryOf(const CommitPlace& place,
                                        const control::CommitCheckpoint& request) {
  return data::ResolveUnderRoot("checkpoint.directory", place.root, request.directory);
}

// A failure here only wastes disk space.
void RemoveEarlierPartials(worker_checkpoint::FileSystem& files, const std::string& directory,
                           const control::CommitCheckpoint& request) {
  const auto names = files.List(directory);
  if (!names.ok()) return;
  const checkpoint::PartialWriter writer{.job = request.key.job,
                                         .generation = request.key.generation};
  for (const std::string& name : *names) {
    const auto found = checkpoint::ParseStepDirectoryName(name);
    if (!found.has_value() || found->kind != checkpoint::StepDirectoryKind::kPartial) continue;
    if (checkpoint::WriterOf(found->suffix) != writer || found->step >= request.step) continue;
    worker_checkpoint::RemovePartial(files, directory, found->step, writer.job, writer.generation)
        .IgnoreError();
  }
}

}  // namespace

absl::Status CommitCheckpoint(const CommitPlace& place, const control::CommitCheckpoint& request) {
  ASSIGN_OR_RETURN(const std::string directory, DirectoryOf(place, request));
  if (request.manifest.empty()) {
    return worker_checkpoint::RemovePartial(*place.files, directory, request.step, request.key.job,
                                            request.key.generation);
  }
  const checkpoint::Owner owner = OwnerOf(request);
  RETURN_IF_ERROR(worker_checkpoint::NoteEpoch(*place.files, directory, owner));
  ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                   worker_checkpoint::Publish(*place.files, directory, request.manifest,
                                              {.token = place.incarnation, .owner = owner}));
  for (const std::string& note : notes) LogNote(request, directory, note);
  RemoveEarlierPartials(*place.files, directory, request);
  return absl::OkStatus();
}

absl::Status RetainCheckpoints(const CommitPlace& place, const control::CommitCheckpoint& request) {
  ASSIGN_OR_RETURN(const std::string directory, DirectoryOf(place, request));
  ASSIGN_OR_RETURN(const std::vector<std::string> removed,
                   worker_checkpoint::Retain(*place.files, directory,
                                             {.step = request.step,
                                              .keep = request.keep,
                                              .resumed = request.resumed,
                                              .owner = OwnerOf(request)}));
  for (const std::string& name : removed)
    LogNote(request, directory, absl::StrCat("removed ", name));
  return absl::OkStatus();
}

CheckpointCommitter::CheckpointCommitter(
    CommitAction commit, CommitAction retain,
    std::function<void(const control::CheckpointCommitted&)> answer)
    : commit_(std::move(commit)), retain_(std::move(retain)), answer_(std::move(answer)) {}

void CheckpointCommitter::Add(control::CommitCheckpoint request) {
  thread_.Add([this, request = std::move(request)] { Run(request); });
}

void CheckpointCommitter::Run(const control::CommitCheckpoint& request) {
  const absl::Status status = commit_(request);
  const bool ok = status.ok();
  const std::string error = ok ? "" : status.ToString();
  const char* const outcome = request.manifest.empty() ? "checkpoint given up"
                              : ok                     ? "checkpoint committed"
                                                       : "checkpoint not committed";
  Log(ok ? LogLevel::kInfo : LogLevel::kWarning, outcome,
      {{"job", request.key.job}, {"step", std::to_string(request.step.value())}, {"error", error}});
  const bool retains = ok && !request.manifest.empty() && retain_ != nullptr;
  if (retains) {
    absl::MutexLock lock(&mutex_);
    newest_[request.key.job] = request.step;
  }
  answer_({.key = request.key, .step = request.step, .error = error});
  if (retains) retainer_.Add([this, request] { Retain(request); });
}

void CheckpointCommitter::Retain(const control::CommitCheckpoint& request) {
  {
    absl::MutexLock lock(&mutex_);
    const auto newest = newest_.find(request.key.job);
    // A newer one will be read back instead, so that a slow disk does not fall behind.
    if (newest == newest_.end() || newest->second != request.step) return;
    newest_.erase(newest);
  }
  const absl::Status status = retain_(request);
  if (status.ok()) return;
  Log(LogLevel::kWarning, "old checkpoints not removed",
      {{"job", request.key.job},
       {"step", std::to_string(request.step.value())},
       {"error", status.ToString()}});
}

}  // namespace takt::session
