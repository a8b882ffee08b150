// SPDX-License-Identifier: Apache-2.0
#include "proto/host_frame.h"

#include <utility>

#include "absl/strings/cord.h"
#include "common/base/status.h"

namespace takt {
namespace {

// The parts after the first one are at most 256 KiB together.
constexpr int kMostParts = 64;
constexpr std::size_t kSmallBytes = 4096;

}  // namespace

v1::HostFrame FrameOf(std::int64_t stream, std::string message) {
  v1::HostFrame frame;
  v1::StreamPart& part = *frame.add_parts();
  part.set_stream(stream);
  part.set_message(std::move(message));
  return frame;
}

v1::HostFrame EndFrame(std::int64_t stream, const absl::Status& status) {
  v1::HostFrame frame;
  v1::StreamPart& part = *frame.add_parts();
  part.set_stream(stream);
  v1::StreamEnd& end = *part.mutable_end();
  end.set_code(static_cast<int>(status.code()));
  end.set_message(std::string(status.message()));
  if (const auto payload = status.GetPayload(kErrorDetailUrl); payload.has_value())
    end.set_detail(std::string(*payload));
  return frame;
}

absl::Status StatusOf(const v1::StreamEnd& end) {
  absl::Status status(static_cast<absl::StatusCode>(end.code()), end.message());
  if (!status.ok() && !end.detail().empty())
    status.SetPayload(kErrorDetailUrl, absl::Cord(end.detail()));
  return status;
}

bool JoinFrames(v1::HostFrame& last, v1::HostFrame& next) {
  if (last.parts_size() + next.parts_size() > kMostParts) return false;
  for (const v1::StreamPart& part : next.parts()) {
    if (part.ByteSizeLong() > kSmallBytes) return false;
  }
  for (v1::StreamPart& part : *next.mutable_parts()) *last.add_parts() = std::move(part);
  return true;
}

}  // namespace takt
