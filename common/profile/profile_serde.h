// SPDX-License-Identifier: Apache-2.0
// Profiles to and from the wire, and to and from the bytes that a store keeps.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/profile/profile.h"
#include "takt/v1/profile.pb.h"

namespace takt::profile {

// The message names this version of the program.
v1::Profile ToProto(const Profile& profile);
// It does not look at the version. Errors: kInvalidArgument (a value that nobody can have measured,
// or a number that names nothing).
absl::StatusOr<Profile> FromProto(const v1::Profile& proto);

std::string FormatProfile(const Profile& profile);
// Errors: kFailedPrecondition (another version of the program measured it), kDataLoss (the bytes
// are damaged).
absl::StatusOr<Profile> ParseProfile(const std::string& bytes);

}  // namespace takt::profile
