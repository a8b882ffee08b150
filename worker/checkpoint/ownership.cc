// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/ownership.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "worker/checkpoint/commit.h"

namespace takt::worker_checkpoint {
namespace {

absl::Status OwnedBy(const std::string& directory, const checkpoint::Owner& owner,
                     const checkpoint::Owner& other) {
  return absl::AbortedError(absl::StrCat(
      directory, " belongs to generation ", other.generation.value(), " of job ", other.job,
      other.job_id == owner.job_id ? "" : absl::StrCat(" (id ", other.job_id, ")"),
      " now; generation ", owner.generation.value(), " of job ", owner.job, " must not change it"));
}

}  // namespace

absl::Status TakeOwnership(FileSystem& files, const std::string& directory,
                           const checkpoint::Owner& owner,
                           std::span<const std::string> other_jobs) {
  if (owner.job_id.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<checkpoint::Owner> before, checkpoint::ReadOwner(directory));
  if (before == owner) return absl::OkStatus();
  if (before.has_value() && before->job_id == owner.job_id &&
      before->generation > owner.generation) {
    return OwnedBy(directory, owner, *before);
  }
  if (before.has_value() && std::ranges::find(other_jobs, before->job_id) != other_jobs.end()) {
    return InvalidField({.field = "checkpoint.directory",
                         .value = directory,
                         .rule = absl::StrCat("is the directory of job ", before->job,
                                              ", which has not ended, and cannot be that of job ",
                                              owner.job, " too"),
                         .fix = "name another one, or end that job first"});
  }
  const std::string path = absl::StrCat(directory, "/", checkpoint::kOwnerFile);
  const std::string temporary =
      absl::StrCat(path, ".partial-", owner.job_id, "-", owner.generation.value());
  RETURN_IF_ERROR(WriteFile(files, temporary, checkpoint::FormatOwner(owner)));
  RETURN_IF_ERROR(files.Rename(temporary, path));
  RETURN_IF_ERROR(files.SyncDirectory(directory));
  TAKT_FAILPOINT("checkpoint.owned");
  return CheckOwnership(directory, owner);
}

absl::Status CheckOwnership(const std::string& directory, const checkpoint::Owner& owner) {
  if (owner.job_id.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<checkpoint::Owner> there, checkpoint::ReadOwner(directory));
  if (there.has_value() && *there != owner) return OwnedBy(directory, owner, *there);
  if (owner.epoch == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::int64_t noted, checkpoint::ReadEpoch(directory, owner));
  if (noted <= owner.epoch) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(directory, " obeys a coordinator of epoch ", noted,
                                         " now; one of epoch ", owner.epoch,
                                         " must not change it for job ", owner.job, " any more"));
}

absl::Status NoteEpoch(FileSystem& files, const std::string& directory,
                       const checkpoint::Owner& owner) {
  if (owner.job_id.empty() || owner.epoch == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckOwnership(directory, owner));
  ASSIGN_OR_RETURN(const std::int64_t noted, checkpoint::ReadEpoch(directory, owner));
  if (noted == owner.epoch) return absl::OkStatus();
  const std::string temporary =
      absl::StrCat(directory, "/", checkpoint::kOwnerFile, ".partial-", owner.job_id, "-",
                   owner.generation.value(), "-", owner.epoch);
  RETURN_IF_ERROR(WriteFile(files, temporary, checkpoint::FormatEpoch(owner)));
  RETURN_IF_ERROR(files.Rename(temporary, absl::StrCat(directory, "/", checkpoint::kEpochFile)));
  return files.SyncDirectory(directory);
}

}  // namespace takt::worker_checkpoint
