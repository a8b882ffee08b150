// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "worker/backend/stream.h"

namespace takt::backend {

// Orders the work of two streams. Thread: the one that gives work to both.
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
    RETURN_IF_ERROR(first_->MakeRoom(1));
    RETURN_IF_ERROR(first_->Record(*reached_));
    return then_ == nullptr ? reached_->Wait() : then_->Await(*reached_);
  }

 private:
  StreamLink() = default;

  Stream* first_ = nullptr;
  Stream* then_ = nullptr;
  std::unique_ptr<Event> reached_;
};

}  // namespace takt::backend
