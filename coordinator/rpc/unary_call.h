// SPDX-License-Identifier: Apache-2.0
// Makes sure that a unary call is answered. proto/writing_stream.h does it for streams.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/status/status.h"
#include "coordinator/rpc/guard.h"
#include "proto/rpc_status.h"

namespace takt::coordinator_rpc {

// One unary call, which is answered once. If it is dropped without an answer, as happens when the
// coordinator stops, it answers UNAVAILABLE. One caller at a time.
class UnaryCall final {
 public:
  UnaryCall(grpc::CallbackServerContext* context, AuditEntry audit_entry)
      : context_(context),
        reactor_(context->DefaultReactor()),
        audit_entry_(std::move(audit_entry)) {}
  ~UnaryCall() {
    if (reactor_ != nullptr)
      Finish(
          absl::UnavailableError("the coordinator is stopping; the outcome is unknown: ask again"));
  }
  UnaryCall(const UnaryCall&) = delete;
  UnaryCall& operator=(const UnaryCall&) = delete;

  void Finish(const absl::Status& status) {
    audit_entry_.Write(status);
    std::exchange(reactor_, nullptr)->Finish(ToGrpc(status, *context_));
  }
  // Returns what the handler must return. It is valid until Finish.
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  const access::Identity& who() const { return audit_entry_.who; }

 private:
  grpc::CallbackServerContext* const context_;
  grpc::ServerUnaryReactor* reactor_;
  const AuditEntry audit_entry_;
};

}  // namespace takt::coordinator_rpc
