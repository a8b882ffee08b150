// SPDX-License-Identifier: Apache-2.0
// The file `owner` in a directory of checkpoints says which generation of which job may change it.
// It is a fence: a generation writes it before it changes anything else, and whoever wants to move
// or remove something reads it first. docs/checkpoints.md describes the text.
#pragma once

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
  bool operator==(const Owner&) const = default;
};

std::string FormatOwner(const Owner& owner);

// Accepts only what FormatOwner writes. name: the file's, for errors. Errors: kDataLoss.
absl::StatusOr<Owner> ParseOwner(std::string_view text, std::string_view name);

// Returns nullopt if nobody owns the directory. It opens the file anew, because on NFS only that
// shows what another host has written. Errors: kDataLoss (the text is damaged), others from the
// disk.
absl::StatusOr<std::optional<Owner>> ReadOwner(const std::string& directory);

}  // namespace takt::checkpoint
