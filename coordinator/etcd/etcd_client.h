// SPDX-License-Identifier: Apache-2.0
// Calls etcd: one attempt a call, on one of its members. After a failure the next call goes to the
// next member.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/certificates/tls_files.h"
#include "coordinator/timeouts/timeouts.h"
#include "etcd/v3/etcd.pb.h"

namespace takt::etcd {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // HOST:PORT of members
  certificates::TlsFiles tls;          // of the client, with the authority of the members
  bool insecure = false;               // TCP without TLS: for tests alone
  absl::Duration call_timeout = timeouts::kStateCall;
};

// Thread-safe.
//
// Errors of all calls name the member:
//   kUnavailable         it does not answer, or etcd has no quorum; a write may have taken effect
//   kResourceExhausted   etcd is over its quota; nothing was written
//   kOutOfRange          a wanted revision was compacted, or is not there yet
//   kPermissionDenied    etcd refuses this client's certificate
//   kFailedPrecondition  the member belongs to another etcd cluster than the first that answered
//   kInternal            etcd finds the request invalid, which is our bug
class EtcdClient final {
 public:
  // Connects when it is first used. Errors: kInvalidArgument (FieldError on --etcd-endpoints or
  // one of the files).
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(const EtcdOptions& options);
  ~EtcdClient();

  // Reads have no effect, so each asks up to all members.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request);

  // Returns the lease's id. etcd raises a lease that is too short.
  absl::StatusOr<std::int64_t> GrantLease(absl::Duration lease);
  // kNotFound: there is no such lease any more.
  absl::Status KeepLease(std::int64_t id, absl::Duration timeout);
  absl::Status RevokeLease(std::int64_t id);

 private:
  struct Member;
  explicit EtcdClient(const EtcdOptions& options);

  // Makes the call `method` of the stub that `stub` selects, on the current member.
  template <class Stub, class Request, class Response>
  absl::StatusOr<Response> Call(const std::unique_ptr<Stub> Member::*stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request);
  absl::Status CheckCluster(const Member& member, const etcdserverpb::ResponseHeader& header);

  const absl::Duration call_timeout_;
  std::vector<std::unique_ptr<Member>> members_;  // constant after construction
  std::atomic<std::size_t> current_ = 0;          // counts on; the member is the rest
  std::atomic<std::uint64_t> cluster_ = 0;        // of the first answer; 0: none came yet
};

}  // namespace takt::etcd
