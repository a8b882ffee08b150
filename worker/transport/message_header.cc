// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/message_header.h"

#include "absl/strings/str_cat.h"

namespace takt::transport {

std::string ToString(const MessageTag& tag) {
  return absl::StrCat("generation ", tag.generation, " step ", tag.step, " stage ", tag.stage,
                      " microbatch ", tag.microbatch, " direction ", tag.direction, " sequence ",
                      tag.sequence);
}

absl::Status CheckHeader(const MessageHeader& header, const MessageTag& expected,
                         std::size_t expected_bytes, const std::string& channel) {
  if (header.magic != MessageHeader::kMagic) {
    return absl::InternalError(absl::StrCat("channel ", channel,
                                            ": not a message of this protocol (expected ",
                                            ToString(expected), ")"));
  }
  if (header.tag == expected && header.size_bytes == expected_bytes) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("channel ", channel, ": expected ", ToString(expected), " of ", expected_bytes,
                   " bytes, but ", ToString(header.tag), " of ", header.size_bytes, " bytes came"));
}

absl::Status CheckFits(const std::string& channel, std::size_t bytes, std::size_t max_bytes) {
  if (bytes <= max_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("channel ", channel, ": a message of ", bytes,
                                                 " bytes, but it was opened for at most ",
                                                 max_bytes));
}

absl::Status DifferentSizes(const std::string& channel, std::size_t here, std::size_t there) {
  return absl::InvalidArgumentError(
      absl::StrCat("channel ", channel, " opened for ", here, " bytes here and ", there, " there"));
}

}  // namespace takt::transport
