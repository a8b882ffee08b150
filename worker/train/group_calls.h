// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/backend/stream_link.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Puts calls of a group between the work of a backend, even if the group has a stream of its own.
// Thread: the backend's.
class GroupCalls final {
 public:
  // Both are borrowed for the object's life.
  static absl::StatusOr<std::unique_ptr<GroupCalls>> Create(backend::Backend& backend,
                                                            transport::Collective& group) {
    std::unique_ptr<GroupCalls> calls(new GroupCalls(backend, group));
    backend::Stream *const compute = backend.stream(), *const of_group = group.stream();
    if (compute == nullptr || of_group == nullptr) return calls;
    ASSIGN_OR_RETURN(calls->computed_, compute->CreateEvent());
    ASSIGN_OR_RETURN(calls->met_, of_group->CreateEvent());
    return calls;
  }

  // Makes calls of the group that run after the backend's work so far and before its later work.
  // Blocks: without two streams until they are done.  Errors: those of the calls and of the work.
  absl::Status Make(absl::FunctionRef<absl::Status()> calls) {
    if (computed_ == nullptr) {
      // The group reads and writes before its calls return.
      RETURN_IF_ERROR(backend_.Synchronize());
      return calls();
    }
    RETURN_IF_ERROR(backend::Follow(*group_.stream(), *backend_.stream(), *computed_));
    RETURN_IF_ERROR(calls());
    return backend::Follow(*backend_.stream(), *group_.stream(), *met_);
  }

 private:
  GroupCalls(backend::Backend& backend, transport::Collective& group)
      : backend_(backend), group_(group) {}

  backend::Backend& backend_;
  transport::Collective& group_;
  // Points of the backend's stream and of the group's. Null unless both have one.
  std::unique_ptr<backend::Event> computed_, met_;
};

}  // namespace takt::train
