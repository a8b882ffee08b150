// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/nccl/stream_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::transport::nccl {

absl::StatusOr<StreamWatch::Work> StreamWatch::SpareLocked(backend::Stream& stream) {
  Work work;
  if (!spare_.empty()) {
    work = std::move(spare_.back());
    spare_.pop_back();
    work.begun_nanos = 0;
    work.given = false;
    return work;
  }
  ASSIGN_OR_RETURN(work.begun, stream.CreateEvent());
  ASSIGN_OR_RETURN(work.done, stream.CreateEvent());
  return work;
}

absl::Status StreamWatch::Begin(backend::Stream& stream) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Work work, SpareLocked(stream));
  RETURN_IF_ERROR(stream.Record(*work.begun));
  works_.push_back(std::move(work));
  return absl::OkStatus();
}

absl::Status StreamWatch::End(backend::Stream& stream) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(stream.Record(*works_.back().done));
  works_.back().given = true;
  return absl::OkStatus();
}

absl::Status StreamWatch::Check(std::int64_t now_nanos) {
  absl::MutexLock lock(&mutex_);
  for (; !works_.empty() && works_.front().given; works_.pop_front()) {
    Work& work = works_.front();
    ASSIGN_OR_RETURN(const bool done, work.done->Reached());
    if (!done) {
      ASSIGN_OR_RETURN(const bool begun, work.begun->Reached());
      if (!begun) return absl::OkStatus();
      if (work.begun_nanos == 0) work.begun_nanos = now_nanos;
      if (now_nanos - work.begun_nanos < absl::ToInt64Nanoseconds(timeout_))
        return absl::OkStatus();
      return absl::DeadlineExceededError(absl::StrCat(
          "the device has waited ", absl::FormatDuration(timeout_), " for its peer's part"));
    }
    spare_.push_back(std::move(work));
  }
  return absl::OkStatus();
}

void StreamWatch::Forget() {
  absl::MutexLock lock(&mutex_);
  works_.clear();
  spare_.clear();
}

}  // namespace takt::transport::nccl
