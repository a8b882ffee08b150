// SPDX-License-Identifier: Apache-2.0
// At the door of the server: who calls, whether the table of common/access lets him, and the line
// of the audit log. Every call passes Admit before its handler runs; handlers then decide about
// what the request names.
#pragma once

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/access/identity.h"
#include "common/access/rate_limiter.h"
#include "common/base/clock.h"

namespace takt::coordinator_rpc {

struct GuardOptions {
  // Of the identities that are let in; nullopt: the server asks for none and trusts everybody.
  std::optional<std::string> domain;
  access::RateLimit rate;  // of each identity
  const Clock* clock = &Clock::Real();
};

// What a caller does to what. Goes to the audit log if the table says that the method changes
// something.
struct Deed {
  access::Identity who;
  std::string method;   // "/takt.v1.JobService/CancelJob"
  std::string subject;  // "job/j"; empty: nothing in particular

  // Once, when it is known how it ended.
  void Audit(const absl::Status& outcome) const;
};

// "/package.Service/Method"
template <class Service>
std::string MethodOf(absl::string_view method) {
  return absl::StrCat("/", Service::service_full_name(), "/", method);
}

// Thread-safe.
class Guard final {
 public:
  explicit Guard(GuardOptions options);

  access::Identity CallerOf(const grpc::ServerContextBase& context) const;
  Deed DeedOf(const grpc::ServerContextBase& context, std::string method,
              std::string subject) const {
    return {CallerOf(context), std::move(method), std::move(subject)};
  }

  // kPermissionDenied, kUnauthenticated; kResourceExhausted: more calls a second, refused ones
  // too, than an identity may make.
  absl::Status Admit(const access::Identity& who, absl::string_view method);

  // Once more, for what a peer without a certificate may call: so many calls a second of one
  // address, so that no stranger keeps another out. Others were counted by Admit.
  absl::Status AdmitStranger(const grpc::ServerContextBase& context);

  // For the credentials of a TLS server: Admit before every call of every service. Borrows the
  // guard.
  std::shared_ptr<grpc::AuthMetadataProcessor> Processor();

  // Null, unless the server asks for identities.
  const std::string* domain() const { return options_.domain ? &*options_.domain : nullptr; }

 private:
  // kResourceExhausted
  absl::Status Count(const std::string& who);

  const GuardOptions options_;
  absl::Mutex mutex_;
  access::RateLimiter limiter_ ABSL_GUARDED_BY(mutex_);
};

// "ipv4:10.0.0.1:4711" (grpc::ServerContextBase::peer) without the port; of IPv6 the first half,
// since a host may choose the other.
std::string NetworkOf(const std::string& peer);

}  // namespace takt::coordinator_rpc
