// SPDX-License-Identifier: Apache-2.0
// The file `owner` in a directory of checkpoints says which generation of which job may change it.
// It is a fence: a generation writes it before it changes anything else, and whoever wants to move
// or remove something reads it first. docs/checkpoints.md describes the text.
//
// The file `owner.epoch` fences off earlier lives of the coordinator in the same way. Whoever makes
// a checkpoint visible notes the epoch of the coordinator that asked for it first, and a lower
// epoch of the same generation is refused from then on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/id.h"

namespace takt::checkpoint {

struct Owner {
  std::string job_id;  // random, never reused; empty: an older coordinator did not say
  std::string job;     // its name, for people
  Generation generation;
  std::int64_t epoch = 0;  // of the coordinator that commands the generation; 0: it has none

  // True if it is the same generation of the same job, whichever coordinator commands it.
  bool operator==(const Owner& other) const {
    return job_id == other.job_id && job == other.job && generation == other.generation;
  }
};

// The epoch is not part of the text.
std::string FormatOwner(const Owner& owner);

// Accepts only what FormatOwner writes. name: the file's, for errors. Errors: kDataLoss.
absl::StatusOr<Owner> ParseOwner(std::string_view text, std::string_view name);

// Returns nullopt if nobody owns the directory. It opens the file each time, because on NFS only
// that shows what another host has written. Errors: kDataLoss (the text is damaged), others from
// the disk.
absl::StatusOr<std::optional<Owner>> ReadOwner(const std::string& directory);

std::string FormatEpoch(const Owner& owner);
// Returns the epoch that was noted for the owner's generation. 0: none was, or one of another
// generation or job. Errors: as ReadOwner.
absl::StatusOr<std::int64_t> ReadEpoch(const std::string& directory, const Owner& owner);

}  // namespace takt::checkpoint
