// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/nccl/presence.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace takt::transport::nccl {
namespace {

// Older versions refuse two ranks on one GPU, whatever they are told.
constexpr int kFirstThatShares = 23003;

}  // namespace

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::string ToText(const Presence& presence) {
  if (presence.version == 0) return "none";
  return absl::StrCat(presence.version, presence.shares_gpu ? " shares " : " alone ",
                      presence.device);
}

absl::StatusOr<Presence> ParsePresence(std::string_view text) {
  if (text == "none") return Presence();
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), absl::MaxSplits(' ', 2));
  Presence presence;
  const bool whole = parts.size() == 3 && absl::SimpleAtoi(parts[0], &presence.version) &&
                     presence.version > 0 && (parts[1] == "shares" || parts[1] == "alone");
  if (!whole) return absl::InvalidArgumentError("what a rank says of its NCCL cannot be read");
  presence.shares_gpu = parts[1] == "shares";
  presence.device = parts[2];
  return presence;
}

absl::Status CanMeet(const Presence& a, const Presence& b) {
  if (a.version == 0 || b.version == 0) return absl::FailedPreconditionError("one has no NCCL");
  if (a.version != b.version) {
    return absl::FailedPreconditionError(absl::StrCat("their NCCL differ: ", VersionText(a.version),
                                                      " and ", VersionText(b.version)));
  }
  if (a.device != b.device) return absl::OkStatus();
  if (a.shares_gpu && b.shares_gpu && a.version >= kFirstThatShares) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("they share the GPU ", a.device));
}

}  // namespace takt::transport::nccl
