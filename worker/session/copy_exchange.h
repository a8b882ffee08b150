// SPDX-License-Identifier: Apache-2.0
// Sends the copy of a rank's state into another rank's memory, at one boundary after the other.
//
//   sender                        receiver
//   "a copy follows", layers  -->
//                             <-- "it came whole" or not, and whether this rank takes no more
//
//   "no more copies"          -->
//
// So a rank that makes no more copies says so at its next boundary, and no other rank waits for it
// until the timeout of the transport.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "worker/checkpoint/state_copy.h"
#include "worker/transport/transport.h"

namespace takt::session {

// Both ends open the channels for answers with this size of a message, and those for copies with
// kCopyMessageBytes.
inline constexpr std::size_t kCopyAnswerBytes = 1;

// The end of the rank whose state is copied. One caller at a time.
class CopySender final {
 public:
  CopySender(std::unique_ptr<transport::SendChannel> data,
             std::unique_ptr<transport::RecvChannel> answers, Generation generation)
      : data_(std::move(data)), answers_(std::move(answers)), generation_(generation) {}

  // False once one of the two ranks has said that it makes or takes no more copies, or a channel
  // has failed.
  bool open() const { return open_; }
  // Sends a copy that is whole.  Blocks: until it is answered.
  // Errors: kDataLoss (it came damaged; the next one may be sent), kCancelled (the receiver takes
  // no more), those of the channels.
  absl::Status Send(worker_checkpoint::StateCopy& copy, StepId step);
  // Says, in place of a copy, that no more come. Errors: those of the channel.
  absl::Status Close(StepId step);

 private:
  absl::Status Exchange(worker_checkpoint::StateCopy& copy, StepId step);

  const std::unique_ptr<transport::SendChannel> data_;
  const std::unique_ptr<transport::RecvChannel> answers_;
  const Generation generation_;
  bool open_ = true;
};

// The end of the rank in whose memory the copy lies. One caller at a time.
class CopyReceiver final {
 public:
  CopyReceiver(std::unique_ptr<transport::RecvChannel> data,
               std::unique_ptr<transport::SendChannel> answers, Generation generation)
      : data_(std::move(data)), answers_(std::move(answers)), generation_(generation) {}

  // Says the same as CopySender::open.
  bool open() const { return open_; }
  // Receives into `copy`, which is whole then, and answers. last: this rank takes no more.
  // Errors: kDataLoss (it came damaged; the next one may come), kCancelled (the sender makes no
  // more), those of the channels.
  absl::Status Receive(worker_checkpoint::StateCopy& copy, StepId step, bool last);

 private:
  absl::Status ReceiveLayers(worker_checkpoint::StateCopy& copy, StepId step);

  const std::unique_ptr<transport::RecvChannel> data_;
  const std::unique_ptr<transport::SendChannel> answers_;
  const Generation generation_;
  bool open_ = true;
};

}  // namespace takt::session
