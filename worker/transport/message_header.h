// SPDX-License-Identifier: Apache-2.0
// The header of every message on every transport: its tag and its length. It has 64 bytes, little
// endian.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/transport/transport.h"

namespace takt::transport {

struct MessageHeader {
  static constexpr std::uint64_t kMagic = 0x5441'4b54'4d53'4731;  // "TAKTMSG1"

  std::uint64_t magic = kMagic;
  MessageTag tag;
  std::uint64_t size_bytes = 0;
  std::uint64_t reserved[2] = {};
};
static_assert(sizeof(MessageHeader) == 64);

// "generation 3 step 7 stage 1 microbatch 2 direction 1 sequence 0"
std::string ToString(const MessageTag& tag);

// Returns OK if `header` is of the message that the receiver expects.
// channel: for the message, e.g. "F from rank 0".  kInternal: names both tags and both sizes.
absl::Status CheckHeader(const MessageHeader& header, const MessageTag& expected,
                         std::size_t expected_bytes, const std::string& channel);

// Returns kInvalidArgument if a message of `bytes` is larger than those that `channel` was opened
// for.
absl::Status CheckFits(const std::string& channel, std::size_t bytes, std::size_t max_bytes);

// The error of two ends that open `channel` for messages of different sizes.
absl::Status DifferentSizes(const std::string& channel, std::size_t here, std::size_t there);

}  // namespace takt::transport
