// SPDX-License-Identifier: Apache-2.0
// manifest.json says what a checkpoint holds and how to verify that none of it has changed. It is
// written last: a directory without it is not a checkpoint. docs/checkpoints.md describes the
// fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"

namespace takt::checkpoint {

struct FileEntry {
  std::string name;  // inside the step's directory
  std::int64_t bytes = 0;
  std::string xxh3_128;  // 32 hexadecimal digits, small letters
  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  std::string job;
  Generation generation;
  StepId step;
  std::int64_t windows = 0;  // windows of the training data consumed since step 0
  std::uint64_t seed = 0;
  std::string plan_hash;
  std::string job_spec = "{}";   // an object of JSON: takt.v1.JobSpec
  std::vector<FileEntry> files;  // all but the manifest itself

  // Returns nullptr if there is none of that name. Valid as long as this object.
  const FileEntry* Find(std::string_view name) const;
};

// Returns the text of manifest.json: two-space indented JSON whose last field, `manifest_xxh3_128`,
// is the hash of the text before it, so that a change of any byte shows. Files are sorted by name.
// Errors: kInvalidArgument (FieldError): ParseManifest would refuse the text.
absl::StatusOr<std::string> FormatManifest(Manifest manifest);

// Accepts only what FormatManifest wrote. name: the file's, for errors.
// Errors: kDataLoss: the text does not match its own hash, or has none. kInvalidArgument
// (FieldError): a field is missing, unknown, given twice or breaks its rule.
absl::StatusOr<Manifest> ParseManifest(std::string_view text, std::string_view name);

}  // namespace takt::checkpoint
