// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/model_disk.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"

namespace takt::simulation {

namespace fs = std::filesystem;
using worker_checkpoint::FileSystem;
using worker_checkpoint::WritableFile;

namespace {

std::string ParentOf(const std::string& path) { return fs::path(path).parent_path().string(); }

bool IsStep(const std::string& path) {
  const auto parsed = checkpoint::ParseStepDirectoryName(fs::path(path).filename().string());
  return parsed.has_value() && parsed->kind == checkpoint::StepDirectoryKind::kStep;
}

// Returns `path` with `to` in place of `from` if it lies below `from`.
std::string Moved(const std::string& path, const std::string& from, const std::string& to) {
  return path.starts_with(from + "/") ? to + path.substr(from.size()) : path;
}

}  // namespace

class ModelDisk::File final : public WritableFile {
 public:
  File(ModelDisk& disk, const std::function<void()>& before, std::string path,
       std::unique_ptr<WritableFile> base)
      : disk_(disk), before_(before), path_(std::move(path)), base_(std::move(base)) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    before_();
    const absl::Status fault = disk_.Begin(/*writes=*/true, path_);
    if (fault.ok()) return base_->Append(bytes);
    base_->Append(bytes.first(bytes.size() / 2)).IgnoreError();
    return fault;
  }
  absl::Status Sync() override {
    before_();
    RETURN_IF_ERROR(disk_.Begin(/*writes=*/false, path_));
    if (!disk_.mood_.forgets_syncs) disk_.unsynced_.erase(path_);
    return absl::OkStatus();
  }
  absl::Status Close() override {
    before_();
    RETURN_IF_ERROR(disk_.Begin(/*writes=*/false, path_));
    return base_->Close();
  }

 private:
  ModelDisk& disk_;
  const std::function<void()>& before_;  // of the process, which outlives its files
  const std::string path_;
  const std::unique_ptr<WritableFile> base_;
};

class ModelDisk::Process final : public FileSystem {
 public:
  Process(ModelDisk& disk, std::function<void()> before)
      : disk_(disk), before_(std::move(before)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    RETURN_IF_ERROR(Begin(/*writes=*/true, path));
    std::error_code error;
    const bool existed = fs::exists(path, error);
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, disk_.base_->Create(path));
    if (!existed) disk_.Add({.kind = Change::Kind::kCreated, .path = path});
    disk_.unsynced_.insert(path);
    return std::make_unique<File>(disk_, before_, path, std::move(file));
  }

  absl::Status CreateDirectory(const std::string& path) override {
    RETURN_IF_ERROR(Begin(/*writes=*/true, path));
    std::error_code error;
    const bool existed = fs::exists(path, error);
    RETURN_IF_ERROR(disk_.base_->CreateDirectory(path));
    if (!existed) disk_.Add({.kind = Change::Kind::kCreated, .path = path});
    return absl::OkStatus();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    RETURN_IF_ERROR(Begin(/*writes=*/false, from));
    std::optional<Saved> replaced = Save(to);
    RETURN_IF_ERROR(disk_.base_->Rename(from, to));
    disk_.Rebase(from, to);
    disk_.Add({.kind = Change::Kind::kRenamed,
               .path = from,
               .other = to,
               .replaced = std::move(replaced)});
    disk_.TellSteps(from, to);
    return disk_.MaybeLate(from);
  }

  absl::Status Exchange(const std::string& a, const std::string& b) override {
    RETURN_IF_ERROR(Begin(/*writes=*/false, a));
    if (!disk_.mood_.exchanges) return absl::UnimplementedError("the model disk cannot exchange");
    RETURN_IF_ERROR(disk_.base_->Exchange(a, b));
    disk_.Add({.kind = Change::Kind::kExchanged, .path = a, .other = b});
    disk_.TellSteps(a, b);
    return disk_.MaybeLate(a);
  }

  absl::Status Symlink(const std::string& target, const std::string& path) override {
    RETURN_IF_ERROR(Begin(/*writes=*/true, path));
    RETURN_IF_ERROR(disk_.base_->Symlink(target, path));
    disk_.Add({.kind = Change::Kind::kCreated, .path = path});
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    RETURN_IF_ERROR(Begin(/*writes=*/false, directory));
    ASSIGN_OR_RETURN(std::vector<std::string> names, disk_.base_->List(directory));
    std::ranges::sort(names);  // the order of a directory differs from run to run
    return names;
  }

  absl::Status Remove(const std::string& path) override {
    RETURN_IF_ERROR(Begin(/*writes=*/false, path));
    std::optional<Saved> removed = Save(path);
    RETURN_IF_ERROR(disk_.base_->Remove(path));
    disk_.unsynced_.erase(path);
    disk_.Add({.kind = Change::Kind::kRemoved, .path = path, .replaced = std::move(removed)});
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    RETURN_IF_ERROR(Begin(/*writes=*/false, path));
    disk_.Synced(path);
    return absl::OkStatus();
  }

 private:
  absl::Status Begin(bool writes, const std::string& path) {
    before_();
    return disk_.Begin(writes, path);
  }

  ModelDisk& disk_;
  const std::function<void()> before_;
};

ModelDisk::ModelDisk(Random* random)
    : random_(*random),
      root_(fs::canonical(directory_.path()).string()),
      base_(worker_checkpoint::CreatePosixFileSystem()) {}

std::unique_ptr<FileSystem> ModelDisk::Open(std::function<void()> before) {
  return std::make_unique<Process>(*this, std::move(before));
}

absl::Status ModelDisk::Begin(bool writes, const std::string& path) {
  ++calls_;
  if (writes && mood_.full) return FileError(ENOSPC, absl::StrCat("cannot write ", path));
  if (random_.Chance(mood_.error_chance)) return FileError(EIO, absl::StrCat("cannot use ", path));
  return absl::OkStatus();
}

absl::Status ModelDisk::MaybeLate(const std::string& path) {
  if (!random_.Chance(mood_.late_error_chance)) return absl::OkStatus();
  return FileError(EIO, absl::StrCat("no answer to the rename of ", path));
}

void ModelDisk::Add(Change change) { changes_.push_back(std::move(change)); }

void ModelDisk::TellSteps(const std::string& from, const std::string& to) {
  if (on_step_ && (IsStep(from) || IsStep(to))) on_step_(ParentOf(to));
}

void ModelDisk::Synced(const std::string& directory) {
  if (mood_.forgets_syncs) return;
  std::erase_if(changes_, [&](const Change& change) { return ParentOf(change.path) == directory; });
}

void ModelDisk::PowerCut() {
  const std::int64_t lost = random_.Between(0, std::ssize(changes_));
  for (std::int64_t i = 0; i < lost; ++i) {
    const Change newest = std::move(changes_.back());
    changes_.pop_back();
    Undo(newest);
  }
  changes_.clear();
  for (const std::string& path : unsynced_) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (error) continue;
    const std::int64_t left = random_.Between(0, static_cast<std::int64_t>(bytes));
    fs::resize_file(path, static_cast<std::uintmax_t>(left), error);
  }
  unsynced_.clear();
}

void ModelDisk::Undo(const Change& change) {
  std::error_code error;
  switch (change.kind) {
    case Change::Kind::kCreated:
      fs::remove_all(change.path, error);
      return;
    case Change::Kind::kRenamed:
      fs::rename(change.other, change.path, error);
      Rebase(change.other, change.path);
      if (change.replaced) Restore(change.other, *change.replaced);
      return;
    case Change::Kind::kExchanged:
      base_->Exchange(change.path, change.other).IgnoreError();
      return;
    case Change::Kind::kRemoved:
      if (change.replaced) Restore(change.path, *change.replaced);
      return;
  }
}

void ModelDisk::Rebase(const std::string& from, const std::string& to) {
  for (Change& change : changes_) {
    change.path = Moved(change.path, from, to);
    if (!change.other.empty()) change.other = Moved(change.other, from, to);
  }
  std::set<std::string> files;
  for (const std::string& path : unsynced_) files.insert(path == from ? to : Moved(path, from, to));
  unsynced_ = std::move(files);
}

std::optional<ModelDisk::Saved> ModelDisk::Save(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return std::nullopt;
  Saved saved;
  if (fs::is_directory(status)) {
    saved.directory = true;
  } else if (fs::is_symlink(status)) {
    saved.link = fs::read_symlink(path, error).string();
  } else {
    std::ifstream file(path);
    saved.text = {std::istreambuf_iterator<char>(file), {}};
  }
  return saved;
}

void ModelDisk::Restore(const std::string& path, const Saved& saved) {
  std::error_code error;
  if (saved.directory) {
    fs::create_directory(path, error);
  } else if (!saved.link.empty()) {
    fs::create_symlink(saved.link, path, error);
  } else {
    std::ofstream(path) << saved.text;
  }
}

}  // namespace takt::simulation
