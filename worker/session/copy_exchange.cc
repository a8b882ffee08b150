// SPDX-License-Identifier: Apache-2.0
#include "worker/session/copy_exchange.h"

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/session/copy_transfer.h"

namespace takt::session {
namespace {

using worker_checkpoint::StateCopy;

// No other messages between these two ranks have these directions.
constexpr std::int32_t kAnswer = 21, kAnnouncement = 22;

constexpr std::byte kNoMore{0}, kFollows{1};           // announcements
constexpr std::byte kNothing{0}, kWhole{1}, kLast{2};  // answers; kWhole and kLast are added

transport::MessageTag TagOf(Generation generation, StepId step, std::int32_t direction) {
  return {.generation = generation.value(), .step = step.value(), .direction = direction};
}

absl::Status SendByte(transport::SendChannel& channel, const transport::MessageTag& tag,
                      std::byte value) {
  return channel.Send(tag, std::span<const std::byte>(&value, 1));
}

absl::StatusOr<std::byte> RecvByte(transport::RecvChannel& channel,
                                   const transport::MessageTag& tag) {
  std::byte value{};
  RETURN_IF_ERROR(channel.Recv(tag, std::span<std::byte>(&value, 1)));
  return value;
}

}  // namespace

absl::Status CopySender::Send(StateCopy& copy, StepId step) {
  const absl::Status status = Exchange(copy, step);
  if (!status.ok() && !absl::IsDataLoss(status)) open_ = false;
  return status;
}

absl::Status CopySender::Exchange(StateCopy& copy, StepId step) {
  RETURN_IF_ERROR(SendByte(*data_, TagOf(generation_, step, kAnnouncement), kFollows));
  for (const LayerId layer : copy.layers()) {
    RETURN_IF_ERROR(SendLayer(*data_,
                              {.generation = generation_.value(), .step = step, .layer = layer},
                              copy.Values(layer), copy.hash(layer)));
  }
  ASSIGN_OR_RETURN(const std::byte answer, RecvByte(*answers_, TagOf(generation_, step, kAnswer)));
  if ((answer & kLast) != kNothing)
    return absl::CancelledError("the rank that keeps the copies takes no more");
  if ((answer & kWhole) != kNothing) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the copy of step ", step.value(), " came damaged"));
}

absl::Status CopySender::Close(StepId step) {
  open_ = false;
  return SendByte(*data_, TagOf(generation_, step, kAnnouncement), kNoMore);
}

absl::Status CopyReceiver::ReceiveLayers(StateCopy& copy, StepId step) {
  absl::Status damage;
  for (const LayerId layer : copy.layers()) {
    const absl::Status status =
        RecvLayer(*data_, {.generation = generation_.value(), .step = step, .layer = layer},
                  copy.Values(layer));
    if (!status.ok() && !absl::IsDataLoss(status)) return status;
    damage.Update(status);
  }
  return damage;
}

absl::Status CopyReceiver::Receive(StateCopy& copy, StepId step, bool last) {
  copy.MarkBroken();
  const absl::StatusOr<std::byte> announced =
      RecvByte(*data_, TagOf(generation_, step, kAnnouncement));
  if (!announced.ok() || *announced == kNoMore) {
    open_ = false;
    if (!announced.ok()) return announced.status();
    return absl::CancelledError("the rank that sends copies makes no more");
  }
  const absl::Status received = ReceiveLayers(copy, step);
  if (received.ok()) copy.MarkWhole(step);
  // After an error of the channel the sender may still wait for the answer.
  if (!received.ok() && !absl::IsDataLoss(received)) last = true;
  const std::byte answer = (received.ok() ? kWhole : kNothing) | (last ? kLast : kNothing);
  const absl::Status answered = SendByte(*answers_, TagOf(generation_, step, kAnswer), answer);
  open_ = !last && answered.ok();
  return received.ok() ? answered : received;
}

}  // namespace takt::session
