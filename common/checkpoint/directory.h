// SPDX-License-Identifier: Apache-2.0
// Reads a directory of checkpoints: which steps there are, in what state, and which is the newest
// that can be used. layout.h has the names. Nothing here writes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/base/mapped_file.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"

namespace takt::checkpoint {

enum class StepState : std::uint8_t {
  kComplete,  // its manifest can be read, and the files that it names exist with their sizes
  kPartial,   // being written, or left behind
  kReplaced,  // moved aside for a newer one of the same step
  kDamaged    // has the name of a complete step, but is not complete
};
const char* StepStateName(StepState state);  // "complete", ...

struct ListedStep {
  std::string name;  // of the directory
  StepId step;
  StepState state = StepState::kComplete;
  std::string reason;  // for kDamaged: file and rule
  // For kDamaged: not OK if the disk failed, so that the step may be whole all the same.
  absl::Status disk_error;
  std::optional<Manifest> manifest;  // for kComplete
};

// True if the error says that a checkpoint is not whole. All other errors come from the disk or
// from the network.
bool IsDamage(const absl::Status& status);

// Lists the steps, newest first, and directories of one step by name. Reads manifests and sizes,
// not tensors: only a hash finds damage inside a file of the right size. Leaves out other names.
// Errors: kNotFound, kPermissionDenied, ..., with the path.
absl::StatusOr<std::vector<ListedStep>> ListSteps(const std::string& directory);

// Returns the manifest of a directory that must be complete. Errors: kDataLoss or kInvalidArgument,
// with file and rule.
absl::StatusOr<Manifest> ReadCompleteStep(const std::string& path);

// Checks that the files of `manifest` are in `directory` with their sizes, and that there is no
// other shard. Errors: kDataLoss, with file and rule.
absl::Status CheckFiles(const std::string& directory, const Manifest& manifest);

// Returns the error (kDataLoss) for a file whose hash is `hash` and differs from the manifest's.
absl::Status HashMismatch(std::string_view path, std::string_view hash, const FileEntry& file);

// Reads a file of a step's directory and compares its size and its hash with the manifest's.
// Errors: kDataLoss, those of the disk; with the file.
absl::Status VerifyFile(const std::string& directory, const FileEntry& file);

// Reads the files of a step's directory that its model is made from, which are all but those of the
// optimizer, and compares them with the manifest. The others need not be there.
// Errors: kDataLoss or kInvalidArgument, with file and rule; those of the disk.
absl::Status VerifyModelFiles(const std::string& path);

struct PassedOver {
  StepId step;
  std::string reason;
};
struct ChosenStep {
  std::optional<StepId> step;           // empty: none is usable
  std::vector<PassedOver> passed_over;  // newer than `step`, newest first
};

// Returns the newest step that is complete and that `usable` accepts. steps: in the order of the
// list; at_most: 0 means any. It calls `usable` on the newest step first, until one is OK; the
// message of an error becomes the reason.
ChosenStep ChooseStep(std::span<const ListedStep> steps, StepId at_most,
                      const std::function<absl::Status(const ListedStep&)>& usable);

// An opened complete step, with parsed headers, tensors by name and mapped bytes. Move-only.
class StepFiles {
 public:
  // path: the step's directory. Errors: kDataLoss or kInvalidArgument, with file and rule.
  static absl::StatusOr<StepFiles> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads the whole file and compares its hash with the manifest's.
  // Errors: kDataLoss, kInternal (the disk), with the file.
  absl::Status Verify(const FileEntry& file) const;
  absl::Status VerifyAll() const;

  // Returns nullptr if no file of the step has it. Valid as long as this object; not verified.
  const Tensor* Find(std::string_view tensor) const;
  // Returns the tensors of one safetensors file, or nullptr if the step has no such file. Valid as
  // long as this object; not verified.
  const SafetensorsView* View(std::string_view file) const;

 private:
  struct File {
    MappedFile mapped;
    SafetensorsView view;
  };

  std::string path_;
  Manifest manifest_;
  std::map<std::string, File, std::less<>> files_;  // the safetensors files
};

}  // namespace takt::checkpoint
