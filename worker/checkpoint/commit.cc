// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/commit.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kNewLatestLink[] = "latest.partial";
// The suffix of a partial directory that was a checkpoint until retention removed it. No job's
// suffix equals it, because theirs end with a generation.
constexpr char kRemoved[] = "removed";

// Removes a directory that contains files and no directories. Returns OK if there is none.
absl::Status RemoveFlat(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    RETURN_IF_ERROR(files.Remove(absl::StrCat(directory, "/", name)));
  }
  return files.Remove(directory);
}

class Committer {
 public:
  Committer(FileSystem& files, const std::string& directory, checkpoint::Manifest manifest,
            std::string_view text)
      : files_(files),
        directory_(directory),
        manifest_(std::move(manifest)),
        text_(text),
        name_(checkpoint::StepDirectoryName(manifest_.step)),
        partial_(checkpoint::PartialDirectoryName(manifest_.step, manifest_.job,
                                                  manifest_.generation)) {}

  absl::Status Publish() {
    const bool repeated = IsPublished();
    if (!repeated) {
      const std::string partial = PathOf(partial_);
      RETURN_IF_ERROR(checkpoint::CheckFiles(partial, manifest_));
      RETURN_IF_ERROR(
          WriteFile(files_, absl::StrCat(partial, "/", checkpoint::kManifestFile), text_));
      RETURN_IF_ERROR(files_.SyncDirectory(partial));
      RETURN_IF_ERROR(TakeName());
    }
    RETURN_IF_ERROR(MoveAside(partial_));
    RETURN_IF_ERROR(files_.SyncDirectory(directory_));
    return MoveLatest(repeated);
  }

  // A failure here leaves more than is wanted, so it becomes a note and not an error.
  void Retain(int keep) {
    const absl::StatusOr<std::vector<checkpoint::ListedStep>> steps =
        checkpoint::ListSteps(directory_);
    if (!steps.ok()) return Note("nothing removed", steps.status());
    int kept = 1;  // this checkpoint
    for (const checkpoint::ListedStep& listed : *steps) {
      // Newer checkpoints belong to a run that was given up for an older step. They are not counted
      // and not removed.
      if (listed.state != checkpoint::StepState::kComplete || listed.step >= manifest_.step)
        continue;
      if (++kept <= keep) continue;
      const absl::Status status = RemoveStep(listed);
      if (!status.ok()) return Note(absl::StrCat("cannot remove ", listed.name), status);
      notes_.push_back(absl::StrCat("removed ", listed.name));
    }
  }

  std::vector<std::string> TakeNotes() { return std::move(notes_); }

 private:
  std::string PathOf(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  void Note(std::string what, const absl::Status& status) {
    notes_.push_back(absl::StrCat(what, ": ", status.message()));
  }

  bool IsPublished() const {
    const absl::StatusOr<checkpoint::Manifest> there = checkpoint::ReadCompleteStep(PathOf(name_));
    if (!there.ok()) return false;
    const absl::StatusOr<std::string> text = checkpoint::FormatManifest(*there);
    return text.ok() && *text == text_;
  }

  // Gives the partial directory its final name. If another directory has that name, the two
  // exchange their names in one step, because `latest` may name it.
  absl::Status TakeName() {
    ASSIGN_OR_RETURN(const bool in_the_way, IsThere(name_));
    if (in_the_way) {
      const absl::Status exchanged = files_.Exchange(PathOf(partial_), PathOf(name_));
      if (!absl::IsUnimplemented(exchanged)) return exchanged;
      RETURN_IF_ERROR(MoveAside(name_));
    }
    return files_.Rename(PathOf(partial_), PathOf(name_));
  }

  absl::StatusOr<bool> IsThere(const std::string& name) const {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
    return std::ranges::find(names, name) != names.end();
  }

  // Renames what has the name `name`, if there is such a thing.
  absl::Status MoveAside(const std::string& name) {
    ASSIGN_OR_RETURN(const bool there, IsThere(name));
    if (!there) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string aside, UnusedName());
    RETURN_IF_ERROR(files_.Rename(PathOf(name), PathOf(aside)));
    notes_.push_back(absl::StrCat("moved the ", name_, " that was there to ", aside));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> UnusedName() const {
    for (int number = 1;; ++number) {
      std::string name = checkpoint::ReplacedDirectoryName(manifest_.step, number);
      ASSIGN_OR_RETURN(const bool used, IsThere(name));
      if (!used) return name;
    }
  }

  // If Commit is called again for a step that is no longer the last, `latest` must not move back.
  absl::Status MoveLatest(bool repeated) {
    std::error_code error;
    const std::string target = fs::read_symlink(PathOf(checkpoint::kLatestLink), error).string();
    if (target == name_) return absl::OkStatus();
    const std::optional<checkpoint::StepDirectory> latest =
        checkpoint::ParseStepDirectoryName(target);
    if (repeated && latest.has_value() && latest->step > manifest_.step) return absl::OkStatus();
    const std::string temporary = PathOf(kNewLatestLink);
    if (const absl::Status status = files_.Remove(temporary);
        !status.ok() && !absl::IsNotFound(status))
      return status;
    RETURN_IF_ERROR(files_.Symlink(name_, temporary));
    RETURN_IF_ERROR(files_.Rename(temporary, PathOf(checkpoint::kLatestLink)));
    return files_.SyncDirectory(directory_);
  }

  // Renames first, so that a crash halfway leaves a partial checkpoint, not a damaged one.
  absl::Status RemoveStep(const checkpoint::ListedStep& listed) {
    const std::string removed = PathOf(absl::StrCat(listed.name, ".partial-", kRemoved));
    RETURN_IF_ERROR(RemoveFlat(files_, removed));
    RETURN_IF_ERROR(files_.Rename(PathOf(listed.name), removed));
    return RemoveFlat(files_, removed);
  }

  FileSystem& files_;
  const std::string& directory_;
  const checkpoint::Manifest manifest_;
  const std::string_view text_;
  const std::string name_, partial_;
  std::vector<std::string> notes_;
};

// Returns whether the partial directory with this suffix is one that no process will finish.
bool IsStale(std::string_view suffix, std::string_view job, Generation generation) {
  if (suffix == kRemoved) return true;
  const std::size_t dash = suffix.rfind('-');
  std::int64_t number = 0;
  return dash != std::string_view::npos && suffix.substr(0, dash) == job &&
         absl::SimpleAtoi(std::string(suffix.substr(dash + 1)), &number) &&
         number < generation.value();
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

absl::StatusOr<std::vector<std::string>> Commit(FileSystem& files, const std::string& directory,
                                                int keep, std::string_view manifest) {
  TAKT_CHECK(keep >= 1);
  ASSIGN_OR_RETURN(checkpoint::Manifest parsed,
                   checkpoint::ParseManifest(manifest, checkpoint::kManifestFile));
  Committer committer(files, directory, std::move(parsed), manifest);
  RETURN_IF_ERROR(committer.Publish());
  committer.Retain(keep);
  return committer.TakeNotes();
}

absl::Status RemovePartial(FileSystem& files, const std::string& directory, StepId step,
                           std::string_view job, Generation generation) {
  return RemoveFlat(
      files, absl::StrCat(directory, "/", checkpoint::PartialDirectoryName(step, job, generation)));
}

absl::StatusOr<std::vector<std::string>> RemoveStale(FileSystem& files,
                                                     const std::string& directory,
                                                     std::string_view job, Generation generation) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  std::vector<std::string> removed;
  for (const std::string& name : names) {
    const std::optional<checkpoint::StepDirectory> parsed =
        checkpoint::ParseStepDirectoryName(name);
    if (!parsed.has_value() || parsed->kind != checkpoint::StepDirectoryKind::kPartial ||
        !IsStale(parsed->suffix, job, generation))
      continue;
    RETURN_IF_ERROR(RemoveFlat(files, absl::StrCat(directory, "/", name)));
    removed.push_back(name);
  }
  return removed;
}

}  // namespace takt::worker_checkpoint
