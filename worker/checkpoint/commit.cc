// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/commit.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/file_descriptor.h"
#include "common/base/open_real.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "worker/checkpoint/ownership.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;

// A link that is to become `latest`. The process's token follows.
constexpr std::string_view kNewLatestLink = "latest.partial";
constexpr std::string_view kManifestInfix = ".partial-";  // likewise, of a manifest
// The suffix of a partial directory that is being removed: retention or its writers let go of it.
// No job's suffix equals it, because theirs end with a generation.
constexpr std::string_view kRemoved = "removed";

// Returns the name of a step directory while it is removed, from that of the step.
std::string RemovedName(const std::string& step) {
  return absl::StrCat(step, ".partial-", std::string(kRemoved));
}

// Removes a directory that contains files and no directories. Returns OK if there is none. Another
// process may do the same at the same time.
absl::Status RemoveFlat(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RETURN_IF_ERROR(names.status());
  const auto remove = [&files](const std::string& path) {
    const absl::Status removed = files.Remove(path);
    return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
  };
  for (const std::string& name : *names)
    RETURN_IF_ERROR(remove(absl::StrCat(directory, "/", name)));
  return remove(directory);
}

// True if the name is that of the partial directory of this checkpoint, claimed or not.
bool IsPartialOf(std::string_view name, StepId step, const checkpoint::PartialWriter& writer) {
  const std::optional<checkpoint::StepDirectory> parsed = checkpoint::ParseStepDirectoryName(name);
  return parsed.has_value() && parsed->kind == checkpoint::StepDirectoryKind::kPartial &&
         parsed->step == step && checkpoint::WriterOf(parsed->suffix) == writer;
}

class Publisher {
 public:
  Publisher(FileSystem& files, const std::string& directory, checkpoint::Manifest manifest,
            std::string_view text, const PublishOptions& options)
      : files_(files),
        directory_(directory),
        manifest_(std::move(manifest)),
        text_(text),
        options_(options),
        name_(checkpoint::StepDirectoryName(manifest_.step)),
        written_(
            checkpoint::PartialDirectoryName(manifest_.step, manifest_.job, manifest_.generation)),
        claimed_(checkpoint::ClaimedDirectoryName(manifest_.step, manifest_.job,
                                                  manifest_.generation, options.token)) {}

  absl::Status Run() {
    bool repeated = IsPublished() && !IsWrittenAnew();
    if (!repeated) {
      const absl::Status renamed = Rename();
      // After an error it counts what is there: a server may report an error after it has renamed,
      // and another process that was asked for the same may have been faster.
      repeated = !renamed.ok();
      if (repeated && !IsPublished()) return renamed;
    }
    TAKT_FAILPOINT("checkpoint.has_name");
    RETURN_IF_ERROR(MoveLeftoversAside());
    RETURN_IF_ERROR(files_.SyncDirectory(directory_));
    TAKT_FAILPOINT("checkpoint.before_latest");
    RETURN_IF_ERROR(MoveLatest(repeated));
    TAKT_FAILPOINT("checkpoint.published");
    return absl::OkStatus();
  }

  std::vector<std::string> TakeNotes() { return std::move(notes_); }

 private:
  std::string PathOf(std::string_view name) const {
    return absl::StrCat(directory_, "/", std::string(name));
  }

  bool IsPublished() const {
    const absl::StatusOr<checkpoint::Manifest> there = checkpoint::ReadCompleteStep(PathOf(name_));
    if (!there.ok()) return false;
    const absl::StatusOr<std::string> text = checkpoint::FormatManifest(*there);
    return text.ok() && *text == text_;
  }

  absl::Status Rename() {
    ASSIGN_OR_RETURN(const bool written_anew, Claim());
    // If another process has published it since, the claimed directory is what was in its way.
    if (!written_anew && IsPublished()) return absl::AlreadyExistsError(PathOf(name_));
    RETURN_IF_ERROR(WriteManifest());
    TAKT_FAILPOINT("checkpoint.has_manifest");
    return TakeName();
  }

  // Returns the names under which the files of this checkpoint may lie: the one that the ranks
  // wrote to, and those of processes that were asked to make it visible.
  absl::StatusOr<std::vector<std::string>> PartialNames() const {
    ASSIGN_OR_RETURN(std::vector<std::string> names, files_.List(directory_));
    const checkpoint::PartialWriter writer{.job = manifest_.job,
                                           .generation = manifest_.generation};
    std::erase_if(
        names, [&](const std::string& name) { return !IsPartialOf(name, manifest_.step, writer); });
    return names;
  }

  // True if the ranks have written the files and no process has claimed them yet. Then a step with
  // this very manifest is of an earlier life of the job, and may be damaged.
  bool IsWrittenAnew() const {
    std::error_code error;
    const std::string directory = PathOf(written_);
    return fs::is_directory(directory, error) &&
           !fs::exists(absl::StrCat(directory, "/", checkpoint::kManifestFile), error);
  }

  // Gives the files a name that no other process renames. Of several processes that are asked for
  // the same checkpoint only one has it at a time. One that was paused finds its name gone.
  // Returns whether it took them from where the ranks wrote them.
  absl::StatusOr<bool> Claim() {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, PartialNames());
    if (names.empty()) return absl::DataLossError(absl::StrCat(PathOf(written_), " is missing"));
    const auto is_there = [&names](const std::string& name) {
      return std::ranges::find(names, name) != names.end();
    };
    const bool written_anew = is_there(written_) && IsWrittenAnew();
    const std::string& there = is_there(written_)   ? written_
                               : is_there(claimed_) ? claimed_
                                                    : names.front();
    RETURN_IF_ERROR(checkpoint::CheckFiles(PathOf(there), manifest_));
    if (there == claimed_) return false;
    RETURN_IF_ERROR(RemoveFlat(files_, PathOf(claimed_)));  // of an earlier life of the job
    RETURN_IF_ERROR(Move(there, claimed_));
    TAKT_FAILPOINT("checkpoint.claimed");
    return written_anew;
  }

  // Nobody ever sees a part of the manifest under its name.
  absl::Status WriteManifest() {
    const std::string directory = PathOf(claimed_);
    const std::string unfinished =
        absl::StrCat(checkpoint::kManifestFile, std::string(kManifestInfix));
    ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory));
    for (const std::string& name : names) {  // of processes that did not finish theirs
      if (name.starts_with(unfinished))
        RETURN_IF_ERROR(files_.Remove(absl::StrCat(directory, "/", name)));
    }
    const std::string temporary = absl::StrCat(directory, "/", unfinished, options_.token);
    RETURN_IF_ERROR(WriteFile(files_, temporary, text_));
    RETURN_IF_ERROR(
        files_.Rename(temporary, absl::StrCat(directory, "/", checkpoint::kManifestFile)));
    return files_.SyncDirectory(directory);
  }

  // Gives the claimed directory its final name. If another directory has that name, the two
  // exchange their names in one step, because `latest` may name it.
  absl::Status TakeName() {
    ASSIGN_OR_RETURN(const bool in_the_way, IsThere(name_));
    if (!in_the_way) return Move(claimed_, name_);
    RETURN_IF_ERROR(CheckOwnership(directory_, options_.owner));
    const absl::Status exchanged = files_.Exchange(PathOf(claimed_), PathOf(name_));
    return absl::IsUnimplemented(exchanged) ? Replace() : exchanged;
  }

  // Without an exchange the name is free for a moment. If the claimed directory is gone, this
  // process was paused, and what has the name may be what another one has published: it keeps it.
  absl::Status Replace() {
    ASSIGN_OR_RETURN(const bool claimed, IsThere(claimed_));
    if (!claimed) return absl::NotFoundError(absl::StrCat(PathOf(claimed_), " is gone"));
    ASSIGN_OR_RETURN(const std::string aside, UnusedName());
    RETURN_IF_ERROR(Move(name_, aside));
    const absl::Status renamed = files_.Rename(PathOf(claimed_), PathOf(name_));
    if (renamed.ok() || IsPublished()) {
      NoteMoved(aside);
      return renamed;
    }
    files_.Rename(PathOf(aside), PathOf(name_)).IgnoreError();
    return renamed;
  }

  absl::StatusOr<bool> IsThere(const std::string& name) const {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
    return std::ranges::find(names, name) != names.end();
  }

  // After an exchange the claimed name is that of the directory that was in the way.
  absl::Status MoveLeftoversAside() {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, PartialNames());
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(const std::string aside, UnusedName());
      const absl::Status moved = Move(name, aside);
      if (absl::IsNotFound(moved)) continue;  // another process has moved it
      RETURN_IF_ERROR(moved);
      NoteMoved(aside);
    }
    return absl::OkStatus();
  }

  // Renames, unless a later generation or another job has taken the directory.
  absl::Status Move(const std::string& from, const std::string& to) const {
    RETURN_IF_ERROR(CheckOwnership(directory_, options_.owner));
    return files_.Rename(PathOf(from), PathOf(to));
  }

  void NoteMoved(const std::string& aside) {
    notes_.push_back(absl::StrCat("moved the ", name_, " that was there to ", aside));
  }

  absl::StatusOr<std::string> UnusedName() const {
    for (int number = 1;; ++number) {
      std::string name = checkpoint::ReplacedDirectoryName(manifest_.step, number);
      ASSIGN_OR_RETURN(const bool used, IsThere(name));
      if (!used) return name;
    }
  }

  std::string LatestTarget() const {
    std::error_code error;
    return fs::read_symlink(PathOf(checkpoint::kLatestLink), error).string();
  }

  // If Publish is called again for a step that is no longer the last, `latest` must not move back.
  absl::Status MoveLatest(bool repeated) {
    const std::string target = LatestTarget();
    if (target == name_) return absl::OkStatus();
    const std::optional<checkpoint::StepDirectory> latest =
        checkpoint::ParseStepDirectoryName(target);
    if (repeated && latest.has_value() && latest->step > manifest_.step) return absl::OkStatus();
    const std::string temporary =
        PathOf(absl::StrCat(std::string(kNewLatestLink), "-", options_.token));
    if (const absl::Status status = files_.Remove(temporary);
        !status.ok() && !absl::IsNotFound(status))
      return status;
    RETURN_IF_ERROR(files_.Symlink(name_, temporary));
    RETURN_IF_ERROR(CheckOwnership(directory_, options_.owner));
    const absl::Status moved = files_.Rename(temporary, PathOf(checkpoint::kLatestLink));
    if (!moved.ok() && LatestTarget() != name_) return moved;
    return files_.SyncDirectory(directory_);
  }

  FileSystem& files_;
  const std::string& directory_;
  const checkpoint::Manifest manifest_;
  const std::string_view text_;
  const PublishOptions& options_;
  const std::string name_;
  const std::string written_;  // the name that the ranks wrote to
  const std::string claimed_;  // the name that only this process uses
  std::vector<std::string> notes_;
};

// Lets the next reader of the file read the disk and not this host's memory, where the disk allows
// it.
void DropFromMemory(const std::string& path) {
  const FileDescriptor file(OpenReal(path, O_RDONLY | O_NONBLOCK));
  if (file.valid()) posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

class Retainer {
 public:
  Retainer(FileSystem& files, const std::string& directory, const RetainOptions& options)
      : files_(files), directory_(directory), options_(options) {}

  absl::StatusOr<std::vector<std::string>> Run() const {
    ASSIGN_OR_RETURN(std::vector<std::string> surplus, Surplus());
    if (surplus.empty()) return surplus;
    RETURN_IF_ERROR(ReadBack());
    for (const std::string& name : surplus)
      RETURN_IF_ERROR(Annotate(RemoveStep(name), absl::StrCat("cannot remove ", name)));
    return surplus;
  }

 private:
  std::string PathOf(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  absl::StatusOr<std::vector<std::string>> Surplus() const {
    ASSIGN_OR_RETURN(const std::vector<checkpoint::ListedStep> steps,
                     checkpoint::ListSteps(directory_));
    std::vector<std::string> surplus;
    int kept = 1;  // the published one
    for (const checkpoint::ListedStep& listed : steps) {
      if (listed.state != checkpoint::StepState::kComplete || listed.step >= options_.step)
        continue;
      if (++kept > options_.keep && listed.step != options_.resumed) surplus.push_back(listed.name);
    }
    return surplus;
  }

  absl::Status ReadBack() const {
    ASSIGN_OR_RETURN(
        const checkpoint::StepFiles step,
        checkpoint::StepFiles::Open(PathOf(checkpoint::StepDirectoryName(options_.step))));
    for (const checkpoint::FileEntry& file : step.manifest().files)
      DropFromMemory(absl::StrCat(step.path(), "/", file.name));
    return step.VerifyAll();
  }

  // Renames first, so that a crash halfway leaves a partial checkpoint, not a damaged one.
  absl::Status RemoveStep(const std::string& name) const {
    const std::string removed = PathOf(RemovedName(name));
    RETURN_IF_ERROR(RemoveFlat(files_, removed));
    RETURN_IF_ERROR(CheckOwnership(directory_, options_.owner));
    const absl::Status renamed = files_.Rename(PathOf(name), removed);
    if (!renamed.ok() && !absl::IsNotFound(renamed)) return renamed;
    TAKT_FAILPOINT("checkpoint.removing");
    return RemoveFlat(files_, removed);
  }

  FileSystem& files_;
  const std::string& directory_;
  const RetainOptions& options_;
};

bool IsStale(const std::string& suffix, std::string_view job, Generation generation) {
  if (suffix == kRemoved) return true;
  const std::optional<checkpoint::PartialWriter> writer = checkpoint::WriterOf(suffix);
  return writer.has_value() && writer->job == job && writer->generation < generation;
}

}  // namespace

absl::Status WriteFile(FileSystem& files, const std::string& path, std::string_view text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(text))));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::Status EnsureDirectory(FileSystem& files, const std::string& directory) {
  fs::path path;
  for (const fs::path& part : fs::path(directory)) {
    const fs::path parent = path.empty() ? fs::path(".") : path;
    path /= part;
    std::error_code error;
    if (fs::is_directory(path, error)) continue;
    RETURN_IF_ERROR(files.CreateDirectory(path.string()));
    RETURN_IF_ERROR(files.SyncDirectory(parent.string()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Publish(FileSystem& files, const std::string& directory,
                                                 std::string_view manifest,
                                                 const PublishOptions& options) {
  ASSIGN_OR_RETURN(checkpoint::Manifest parsed,
                   checkpoint::ParseManifest(manifest, checkpoint::kManifestFile));
  Publisher publisher(files, directory, std::move(parsed), manifest, options);
  RETURN_IF_ERROR(publisher.Run());
  return publisher.TakeNotes();
}

absl::StatusOr<std::vector<std::string>> Retain(FileSystem& files, const std::string& directory,
                                                const RetainOptions& options) {
  TAKT_CHECK(options.keep >= 1);
  return Retainer(files, directory, options).Run();
}

absl::Status RemovePartial(FileSystem& files, const std::string& directory, StepId step,
                           std::string_view job, Generation generation) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  const checkpoint::PartialWriter writer{.job = std::string(job), .generation = generation};
  for (const std::string& name : names) {
    if (IsPartialOf(name, step, writer))
      RETURN_IF_ERROR(RemoveFlat(files, absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status RemoveUnclaimed(FileSystem& files, const std::string& directory, StepId step,
                             std::string_view job, Generation generation) {
  const std::string written =
      absl::StrCat(directory, "/", checkpoint::PartialDirectoryName(step, job, generation));
  const std::string removed =
      absl::StrCat(directory, "/", RemovedName(checkpoint::StepDirectoryName(step)));
  RETURN_IF_ERROR(RemoveFlat(files, removed));  // of a removal that was interrupted
  // Either this or the claim renames it, so nothing is taken from a checkpoint that was claimed.
  const absl::Status renamed = files.Rename(written, removed);
  if (absl::IsNotFound(renamed)) return absl::OkStatus();
  RETURN_IF_ERROR(renamed);
  return RemoveFlat(files, removed);
}

absl::StatusOr<std::vector<std::string>> RemoveStale(FileSystem& files,
                                                     const std::string& directory,
                                                     std::string_view job, Generation generation) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  const std::string new_owner = absl::StrCat(checkpoint::kOwnerFile, ".partial");
  std::vector<std::string> removed;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(directory, "/", name);
    const std::optional<checkpoint::StepDirectory> parsed =
        checkpoint::ParseStepDirectoryName(name);
    if (name.starts_with(kNewLatestLink) || name.starts_with(new_owner)) {
      RETURN_IF_ERROR(files.Remove(path));
    } else if (parsed.has_value() && parsed->kind == checkpoint::StepDirectoryKind::kPartial &&
               IsStale(parsed->suffix, job, generation)) {
      RETURN_IF_ERROR(RemoveFlat(files, path));
    } else {
      continue;
    }
    removed.push_back(name);
  }
  return removed;
}

}  // namespace takt::worker_checkpoint
