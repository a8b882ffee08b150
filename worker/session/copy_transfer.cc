// SPDX-License-Identifier: Apache-2.0
#include "worker/session/copy_transfer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"

namespace takt::session {
namespace {

constexpr std::size_t kHashBytes = 32;
constexpr std::int32_t kDirection = 20;  // no other message of the data plane has it

// Returns the tag of the message at `sequence`. The hash is the first message.
transport::MessageTag TagOf(const CopiedState& state, std::int32_t sequence) {
  return {.generation = state.generation,
          .step = state.step.value(),
          .stage = state.layer.value(),
          .direction = kDirection,
          .sequence = sequence};
}

}  // namespace

absl::Status SendLayer(transport::SendChannel& channel, const CopiedState& state,
                       std::span<const float> values, const std::string& hash) {
  TAKT_CHECK(hash.size() == kHashBytes);
  std::int32_t sequence = 0;
  RETURN_IF_ERROR(channel.Send(TagOf(state, sequence), std::as_bytes(std::span(hash))));
  std::span<const std::byte> left = std::as_bytes(values);
  while (!left.empty()) {
    const std::size_t count = std::min(left.size(), kCopyMessageBytes);
    RETURN_IF_ERROR(channel.Send(TagOf(state, ++sequence), left.first(count)));
    left = left.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status RecvLayer(transport::RecvChannel& channel, const CopiedState& state,
                       std::span<float> values) {
  std::int32_t sequence = 0;
  std::string sent(kHashBytes, '\0');
  RETURN_IF_ERROR(channel.Recv(TagOf(state, sequence), std::as_writable_bytes(std::span(sent))));
  std::span<std::byte> left = std::as_writable_bytes(values);
  while (!left.empty()) {
    const std::size_t count = std::min(left.size(), kCopyMessageBytes);
    RETURN_IF_ERROR(channel.Recv(TagOf(state, ++sequence), left.first(count)));
    left = left.subspan(count);
  }
  if (checkpoint::HashOf(std::as_bytes(values)) == sent) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the copy of layer ", state.layer.value(), " of step ",
                                          state.step.value(), " was damaged on its way"));
}

}  // namespace takt::session
