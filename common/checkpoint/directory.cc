// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/directory.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/sequential_file.h"

namespace takt::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::int64_t kMaxManifestBytes = 64 << 20;
constexpr std::size_t kBlockBytes = 256 << 10;  // fits the second-level cache

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return FileError(error.value(), absl::StrCat("cannot list ", directory));
  return names;
}

absl::StatusOr<std::string> ReadManifestText(const std::string& path) {
  ASSIGN_OR_RETURN(SequentialFile file, SequentialFile::Open(path));
  if (file.size() > kMaxManifestBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, " is too large for a manifest"));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  RETURN_IF_ERROR(file.Read(std::as_writable_bytes(std::span(text))));
  return text;
}

absl::Status CheckSize(const std::string& directory, const FileEntry& file) {
  const std::string path = absl::StrCat(directory, "/", file.name);
  const absl::StatusOr<SequentialFile> opened = SequentialFile::Open(path);
  if (absl::IsNotFound(opened.status()))
    return absl::DataLossError(absl::StrCat(path, " is missing"));
  RETURN_IF_ERROR(opened.status());
  if (opened->size() == file.bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, " has ", opened->size(), " bytes, its manifest says ", file.bytes));
}

// Returns the manifest in a directory, which must be that of its step if it is named as one.
absl::StatusOr<Manifest> ReadManifestIn(const std::string& path) {
  const std::string manifest_path = absl::StrCat(path, "/", kManifestFile);
  const absl::StatusOr<std::string> text = ReadManifestText(manifest_path);
  if (absl::IsNotFound(text.status()))
    return absl::DataLossError(absl::StrCat(manifest_path, " is missing"));
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(*text, manifest_path));
  const auto directory = ParseStepDirectoryName(fs::path(path).filename().string());
  if (directory.has_value() && directory->step != manifest.step) {
    return absl::DataLossError(absl::StrCat(
        manifest_path, " is that of ", StepDirectoryName(manifest.step), ", not of its directory"));
  }
  return manifest;
}

// Finds a shard that has no hash: Hugging Face's readers would load it.
absl::Status CheckNoOtherShards(const std::string& directory, const Manifest& manifest) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  for (const std::string& name : names) {
    if (name.ends_with(kShardSuffix) && manifest.Find(name) == nullptr)
      return absl::DataLossError(absl::StrCat(directory, "/", name, " is not in the manifest"));
  }
  return absl::OkStatus();
}

ListedStep Inspect(const std::string& directory, std::string name, const StepDirectory& parsed) {
  ListedStep listed{.name = std::move(name), .step = parsed.step};
  if (parsed.kind != StepDirectoryKind::kStep) {
    listed.state =
        parsed.kind == StepDirectoryKind::kPartial ? StepState::kPartial : StepState::kReplaced;
    return listed;
  }
  absl::StatusOr<Manifest> manifest = ReadCompleteStep(absl::StrCat(directory, "/", listed.name));
  if (manifest.ok()) {
    listed.manifest = *std::move(manifest);
  } else {
    listed.state = StepState::kDamaged;
    listed.reason = std::string(manifest.status().message());
    if (!IsDamage(manifest.status())) listed.disk_error = manifest.status();
  }
  return listed;
}

}  // namespace

const char* StepStateName(StepState state) {
  constexpr const char* kNames[] = {"complete", "partial", "replaced", "damaged"};
  return kNames[static_cast<int>(state)];
}

bool IsDamage(const absl::Status& status) {
  // kFailedPrecondition: something else than a file has its name.
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsFailedPrecondition(status);
}

absl::StatusOr<std::vector<ListedStep>> ListSteps(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<ListedStep> steps;
  for (const std::string& name : names) {
    if (const auto parsed = ParseStepDirectoryName(name)) {
      steps.push_back(Inspect(directory, name, *parsed));
    }
  }
  std::ranges::sort(steps, [](const ListedStep& a, const ListedStep& b) {
    return std::tie(b.step, a.name) < std::tie(a.step, b.name);
  });
  return steps;
}

absl::StatusOr<Manifest> ReadCompleteStep(const std::string& path) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifestIn(path));
  RETURN_IF_ERROR(CheckFiles(path, manifest));
  return manifest;
}

absl::Status CheckFiles(const std::string& directory, const Manifest& manifest) {
  for (const FileEntry& file : manifest.files) RETURN_IF_ERROR(CheckSize(directory, file));
  return CheckNoOtherShards(directory, manifest);
}

absl::Status HashMismatch(std::string_view path, std::string_view hash, const FileEntry& file) {
  return absl::DataLossError(absl::StrCat(std::string(path), " is damaged: its XXH3-128 is ",
                                          std::string(hash), ", its manifest says ",
                                          file.xxh3_128));
}

absl::Status VerifyFile(const std::string& directory, const FileEntry& file) {
  const std::string path = absl::StrCat(directory, "/", file.name);
  RETURN_IF_ERROR(CheckSize(directory, file));
  ASSIGN_OR_RETURN(SequentialFile opened, SequentialFile::Open(path));
  std::vector<std::byte> block(kBlockBytes);
  Hasher hasher;
  for (std::int64_t left = file.bytes; left > 0;) {
    const std::size_t count = std::min(static_cast<std::size_t>(left), block.size());
    RETURN_IF_ERROR(opened.Read(std::span(block).first(count)));
    hasher.Add(std::span(block).first(count));
    left -= static_cast<std::int64_t>(count);
  }
  const std::string hash = hasher.Digest();
  return hash == file.xxh3_128 ? absl::OkStatus() : HashMismatch(path, hash, file);
}

absl::Status VerifyModelFiles(const std::string& path) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestIn(path));
  RETURN_IF_ERROR(CheckNoOtherShards(path, manifest));
  for (const FileEntry& file : manifest.files) {
    if (!IsOptimizerFile(file.name)) RETURN_IF_ERROR(VerifyFile(path, file));
  }
  return absl::OkStatus();
}

ChosenStep ChooseStep(std::span<const ListedStep> steps, StepId at_most,
                      const std::function<absl::Status(const ListedStep&)>& usable) {
  ChosenStep chosen;
  for (const ListedStep& listed : steps) {
    if (at_most != StepId() && listed.step > at_most) continue;
    if (listed.state == StepState::kDamaged) {
      chosen.passed_over.push_back({listed.step, listed.reason});
      continue;
    }
    if (listed.state != StepState::kComplete) continue;
    const absl::Status status = usable(listed);
    if (status.ok()) {
      chosen.step = listed.step;
      return chosen;
    }
    chosen.passed_over.push_back({listed.step, std::string(status.message())});
  }
  return chosen;
}

absl::StatusOr<StepFiles> StepFiles::Open(const std::string& path) {
  StepFiles step;
  step.path_ = path;
  ASSIGN_OR_RETURN(step.manifest_, ReadCompleteStep(path));
  for (const FileEntry& entry : step.manifest_.files) {
    if (!entry.name.ends_with(kShardSuffix)) continue;
    const std::string file_path = absl::StrCat(path, "/", entry.name);
    File& file = step.files_[entry.name];
    ASSIGN_OR_RETURN(file.mapped, MappedFile::Open(file_path));
    ASSIGN_OR_RETURN(file.view, SafetensorsView::Parse(file.mapped.bytes(), file_path));
  }
  return step;
}

absl::Status StepFiles::Verify(const FileEntry& file) const { return VerifyFile(path_, file); }

absl::Status StepFiles::VerifyAll() const {
  for (const FileEntry& file : manifest_.files) RETURN_IF_ERROR(Verify(file));
  return absl::OkStatus();
}

const Tensor* StepFiles::Find(std::string_view tensor) const {
  for (const auto& [name, file] : files_) {
    if (const Tensor* found = file.view.Find(tensor)) return found;
  }
  return nullptr;
}

const SafetensorsView* StepFiles::View(std::string_view file) const {
  const auto it = files_.find(file);
  return it == files_.end() ? nullptr : &it->second.view;
}

}  // namespace takt::checkpoint
