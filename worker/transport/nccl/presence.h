// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other before they choose between NCCL and a way through the host.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::transport::nccl {

struct Presence {
  int version = 0;          // of the library, as it counts (22809); 0: there is none
  std::string device;       // uuid of the GPU
  bool shares_gpu = false;  // its NCCL was told that several ranks may be on one GPU
};

// Formats 22809 as "2.28.9".
std::string VersionText(int version);

// Formats as "22809 shares GPU-1f2e..." or "none".
std::string ToText(const Presence& presence);
absl::StatusOr<Presence> ParsePresence(std::string_view text);

// Returns OK if two ranks may be in one communicator, else kFailedPrecondition with the reason as a
// part of a sentence.
absl::Status CanMeet(const Presence& a, const Presence& b);

}  // namespace takt::transport::nccl
