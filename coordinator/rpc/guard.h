// SPDX-License-Identifier: Apache-2.0
// Identifies the caller of every call, checks it against the table of common/access, and writes the
// audit log. Every call passes Admit before its handler runs; the handler then decides about what
// the request names.
#pragma once

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/server_context.h>

#include <functional>
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
  // The domain of the identities that may connect; nullopt: the server asks for no identity and
  // trusts every caller.
  std::optional<std::string> domain;
  access::RateLimit rate;  // for each identity
  // Returns the address of the leader, empty if nobody leads. gRPC's threads call it. It is null in
  // the coordinator that leads.
  std::function<std::string()> leader;
  const Clock* clock = &Clock::Real();
};

// One entry of the audit log: which caller does what to which subject. It is written if the table
// says that the method changes something.
struct AuditEntry {
  access::Identity who;
  std::string method;   // "/takt.v1.JobService/CancelJob"
  std::string subject;  // "job/j"; empty: the call names none

  // Writes the entry. Call it once, when the outcome of the call is known.
  void Write(const absl::Status& outcome) const;
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

  // Returns whether the coordinator follows another one.
  bool follows() const { return options_.leader != nullptr; }

  access::Identity CallerOf(const grpc::ServerContextBase& context) const;
  AuditEntry AuditEntryOf(const grpc::ServerContextBase& context, std::string method,
                          std::string subject) const {
    return {CallerOf(context), std::move(method), std::move(subject)};
  }

  // Errors: kPermissionDenied, kUnauthenticated, kResourceExhausted (the identity makes too many
  // calls a second; refused ones count), kUnavailable (only the leader answers this; names it).
  absl::Status Admit(const access::Identity& who, absl::string_view method);

  // A second check for the methods that a peer without a certificate may call: one network may make
  // only so many calls a second, so that no stranger keeps another out. Admit counts the others.
  absl::Status AdmitStranger(const grpc::ServerContextBase& context);

  // For the credentials of a TLS server: calls Admit before every call of every service. Borrows
  // the guard.
  std::shared_ptr<grpc::AuthMetadataProcessor> Processor();

  // Null, unless the server asks for identities.
  const std::string* domain() const { return options_.domain ? &*options_.domain : nullptr; }

 private:
  // Counts a call. Errors: kResourceExhausted (too many in this second).
  absl::Status Count(const std::string& who);

  const GuardOptions options_;
  absl::Mutex mutex_;
  access::RateLimiter limiter_ ABSL_GUARDED_BY(mutex_);
};

// Returns a peer's address, e.g. "ipv4:10.0.0.1:4711" (grpc::ServerContextBase::peer), without the
// port. Of an IPv6 address it returns the first half, since a host may choose the other.
std::string NetworkOf(const std::string& peer);

}  // namespace takt::coordinator_rpc
