// SPDX-License-Identifier: Apache-2.0
// Orders the work of different streams of a device.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// Makes the work that `later` is given from now on wait for all work that `earlier` was given so
// far.  Errors: as MakeRoom.
inline absl::Status Follow(Stream& later, Stream& earlier, Event& point) {
  RETURN_IF_ERROR(earlier.MakeRoom(1));
  RETURN_IF_ERROR(earlier.Record(point));
  RETURN_IF_ERROR(later.MakeRoom(1));
  return later.Await(point);
}

// Orders the work of two streams, again and again. Thread: the one that gives work to both.
class StreamLink final {
 public:
  // Both are borrowed for the object's life. Null: work is done when it was given.
  static absl::StatusOr<StreamLink> Create(Stream* first, Stream* then) {
    StreamLink link;
    link.first_ = first;
    link.then_ = then;
    if (first == nullptr || first == then) return link;
    ASSIGN_OR_RETURN(link.reached_, first->CreateEvent());
    return link;
  }

  // What `then` is given from now on begins after what `first` was given so far. Blocks only if
  // `then` is null.  Errors: those of that work.
  absl::Status Pass() {
    if (reached_ == nullptr) return absl::OkStatus();
    if (then_ != nullptr) return Follow(*then_, *first_, *reached_);
    RETURN_IF_ERROR(first_->MakeRoom(1));
    RETURN_IF_ERROR(first_->Record(*reached_));
    return reached_->Wait();
  }

 private:
  StreamLink() = default;

  Stream* first_ = nullptr;
  Stream* then_ = nullptr;
  std::unique_ptr<Event> reached_;
};

}  // namespace takt::backend
