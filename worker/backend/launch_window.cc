// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/launch_window.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace takt::backend {
namespace {

// With more marks, a wait ends closer to the bound and costs more events.
constexpr int kMarks = 8;

}  // namespace

LaunchWindow::LaunchWindow(Stream& stream, int most)
    : stream_(stream), most_(most), interval_(std::max(1, most / kMarks)) {}

absl::Status LaunchWindow::Admit(std::int64_t launches) {
  if (given_ - marked_ >= interval_) RETURN_IF_ERROR(AddMark());
  while (done_ < given_ && given_ + launches - done_ > most_) {
    if (marks_.empty()) RETURN_IF_ERROR(AddMark());
    RETURN_IF_ERROR(AwaitOldest());
  }
  given_ += launches;
  return absl::OkStatus();
}

absl::Status LaunchWindow::AddMark() {
  if (spare_.empty()) {
    ASSIGN_OR_RETURN(spare_.emplace_back(), stream_.CreateEvent());
  }
  RETURN_IF_ERROR(stream_.Record(*spare_.back()));
  marks_.push_back({.event = std::move(spare_.back()), .given = given_});
  spare_.pop_back();
  marked_ = given_;
  return absl::OkStatus();
}

absl::Status LaunchWindow::AwaitOldest() {
  Mark& oldest = marks_.front();
  RETURN_IF_ERROR(
      oldest.event->WaitUnless([this] { return ended_.load(std::memory_order_relaxed); }));
  done_ = oldest.given;
  spare_.push_back(std::move(oldest.event));
  marks_.pop_front();
  return absl::OkStatus();
}

}  // namespace takt::backend
