// SPDX-License-Identifier: Apache-2.0
// A directory of checkpoints as its readers see it: which steps there are, in what state, and the
// newest one that can be used. Names are in layout.h; nothing here writes.
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
  kComplete,  // its manifest reads, and the files that it names are there with their sizes
  kPartial,   // being written, or left behind
  kReplaced,  // moved out of the way of a newer one of the same step
  kDamaged    // named as a complete one, and is not
};
const char* StepStateName(StepState state);  // "complete", ...

struct ListedStep {
  std::string name;  // of its directory
  StepId step;
  StepState state = StepState::kComplete;
  std::string reason;                // of kDamaged: file and rule
  std::optional<Manifest> manifest;  // of kComplete
};

// Newest first, those of one step by name. Reads manifests and sizes, not the tensors: damage
// inside a file of the right size shows only to who hashes it. Other names are left out.
// Errors: kNotFound, kPermissionDenied, ..., naming the path.
absl::StatusOr<std::vector<ListedStep>> ListSteps(const std::string& directory);

// The manifest of a directory that must be complete.
// Errors: kDataLoss or kInvalidArgument, naming file and rule.
absl::StatusOr<Manifest> ReadCompleteStep(const std::string& path);

// That the files which `manifest` names are in `directory` with their sizes, and no other shard.
// Errors: kDataLoss, naming file and rule.
absl::Status CheckFiles(const std::string& directory, const Manifest& manifest);

// Of a file whose bytes hash to `hash` and not to what its manifest says: kDataLoss.
absl::Status HashMismatch(std::string_view path, std::string_view hash, const FileEntry& file);

struct PassedOver {
  StepId step;
  std::string reason;
};
struct ChosenStep {
  std::optional<StepId> step;           // nullopt: none is usable
  std::vector<PassedOver> passed_over;  // newer than it, newest first
};

// The newest step that is complete and that `usable` takes. steps: as listed; at_most: 0 is any.
// usable: asked newest first, until it says OK; its message becomes the reason.
ChosenStep ChooseStep(std::span<const ListedStep> steps, StepId at_most,
                      const std::function<absl::Status(const ListedStep&)>& usable);

// One complete step, opened: headers parsed, tensors by name, bytes mapped. Move-only.
class StepFiles {
 public:
  // path: of the step's directory. Errors: kDataLoss or kInvalidArgument, naming file and rule.
  static absl::StatusOr<StepFiles> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads the whole file and compares its hash with the manifest's.
  // Errors: kDataLoss, kInternal (the disk), naming the file.
  absl::Status Verify(const FileEntry& file) const;
  absl::Status VerifyAll() const;

  // nullptr: no file of the step has it. Valid as long as this object; not verified.
  const Tensor* Find(std::string_view tensor) const;
  // The tensors of one safetensors file; nullptr: the step has no such file. Likewise.
  const SafetensorsView* View(std::string_view file) const;

 private:
  struct File {
    MappedFile mapped;
    SafetensorsView view;
  };

  std::string path_;
  Manifest manifest_;
  std::map<std::string, File, std::less<>> files_;  // those of safetensors
};

}  // namespace takt::checkpoint
