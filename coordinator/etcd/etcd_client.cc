// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/etcd_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/sync_stream.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "common/rpc/endpoint.h"
#include "etcd/v3/etcd.grpc.pb.h"

namespace takt::etcd {
namespace {

namespace pb = ::etcdserverpb;

// etcd ends connections that ping more often than every 5 s.
constexpr int kPingMillis = 10'000;
constexpr int kPingTimeoutMillis = 3'000;

rpc::Endpoint EndpointOf(const EtcdOptions& options, const std::string& address) {
  return {.flag = "--etcd-endpoints",
          .address = address,
          .tls = options.tls,
          .insecure = options.insecure};
}

// Reports what would fail at every connection. etcd may have certificates of any origin, so they
// need no identity of ours.
absl::Status CheckFiles(const certificates::TlsFiles& files) {
  const std::pair<const char*, const std::string&> given[] = {
      {"--etcd-certificate", files.certificate},
      {"--etcd-key", files.key},
      {"--etcd-authority", files.authority}};
  for (const auto& [flag, path] : given) {
    if (!path.empty() && ::access(path.c_str(), R_OK) == 0) continue;
    return InvalidField({.field = flag,
                         .value = path,
                         .rule = path.empty() ? "is not given, and etcd is spoken to over mutual "
                                                "TLS only"
                                              : "cannot be read",
                         .fix = "give --etcd-certificate, --etcd-key and --etcd-authority, of an "
                                "authority for etcd alone (docs/two-coordinators.md)"});
  }
  RETURN_IF_ERROR(certificates::CheckKeyMode(files.key));
  return certificates::CheckAuthority(files);
}

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMillis);
  arguments.SetMaxReceiveMessageSize(-1);  // no limit: what comes was written by us, in pages
  return arguments;
}

// A member without a leader refuses calls with this at once, instead of when they time out.
void Prepare(grpc::ClientContext& context, absl::Duration timeout) {
  context.AddMetadata("hasleader", "true");
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

absl::Status Explain(const grpc::Status& status, const std::string& address) {
  const std::string& text = status.error_message();
  const std::string said = absl::StrCat("etcd at ", address, ": ", text);
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (absl::StrContains(text, "space exceeded")) {
        return absl::ResourceExhaustedError(
            absl::StrCat(said,
                         "; compact and defragment it and disarm its alarm, or raise its quota "
                         "(docs/two-coordinators.md)"));
      }
      break;  // too many requests
    case grpc::StatusCode::OUT_OF_RANGE:
      return absl::OutOfRangeError(said);
    case grpc::StatusCode::NOT_FOUND:
      return absl::NotFoundError(said);
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return absl::PermissionDeniedError(absl::StrCat(
          said,
          "; give the user of the certificate's common name the right to read and write all "
          "keys of --etcd-prefix"));
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::DATA_LOSS:
      return absl::InternalError(said);
    default:
      break;
  }
  if (absl::StartsWith(text, "etcdserver:")) {
    return absl::UnavailableError(
        absl::StrCat(said, "; most members must run and reach each other"));
  }
  return absl::UnavailableError(
      absl::StrCat(said, "; check that it runs there and believes this certificate"));
}

}  // namespace

struct EtcdClient::Member {
  Member(std::string where, const std::shared_ptr<grpc::Channel>& channel)
      : address(std::move(where)),
        kv(pb::KV::NewStub(channel)),
        lease(pb::Lease::NewStub(channel)) {}

  const std::string address;
  const std::unique_ptr<pb::KV::Stub> kv;
  const std::unique_ptr<pb::Lease::Stub> lease;
};

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(const EtcdOptions& options) {
  if (!options.insecure) RETURN_IF_ERROR(CheckFiles(options.tls));
  if (options.endpoints.empty()) {
    return InvalidField({.field = "--etcd-endpoints",
                         .rule = "names no member of etcd",
                         .fix = "give HOST:PORT of each, separated by commas"});
  }
  for (const std::string& address : options.endpoints) {
    const rpc::Endpoint endpoint{.flag = "--etcd-endpoints", .address = address, .insecure = true};
    if (endpoint.is_unix()) {
      return InvalidField({.field = "--etcd-endpoints",
                           .value = address,
                           .rule = "must be HOST:PORT: etcd is spoken to over TLS only",
                           .fix = "e.g. etcd1:2379,etcd2:2379,etcd3:2379"});
    }
    RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));  // its address
  }
  return std::unique_ptr<EtcdClient>(new EtcdClient(options));
}

EtcdClient::EtcdClient(const EtcdOptions& options) : call_timeout_(options.call_timeout) {
  for (const std::string& address : options.endpoints) {
    const auto credentials = rpc::ChannelCredentialsFor(EndpointOf(options, address));
    members_.push_back(std::make_unique<Member>(
        address, grpc::CreateCustomChannel(address, credentials, Arguments())));
  }
}

EtcdClient::~EtcdClient() = default;

absl::Status EtcdClient::CheckCluster(const Member& member, const pb::ResponseHeader& header) {
  std::uint64_t known = 0;
  if (cluster_.compare_exchange_strong(known, header.cluster_id()) ||
      known == header.cluster_id()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("etcd at ", member.address, " is a member of cluster ",
                   absl::Hex(header.cluster_id()), ", and another of --etcd-endpoints of cluster ",
                   absl::Hex(known), "; name members of one cluster"));
}

template <class Stub, class Request, class Response>
absl::StatusOr<Response> EtcdClient::Call(const std::unique_ptr<Stub> Member::*stub,
                                          grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Response*),
                                          const Request& request) {
  const std::size_t asked = current_;
  const Member& member = *members_[asked % members_.size()];
  grpc::ClientContext context;
  Prepare(context, call_timeout_);
  Response response;
  const absl::Status status =
      Explain(((*(member.*stub)).*method)(&context, request, &response), member.address);
  if (absl::IsUnavailable(status)) {
    // Another call may have moved on already.
    std::size_t expected = asked;
    current_.compare_exchange_strong(expected, asked + 1);
  }
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(CheckCluster(member, response.header()));
  return response;
}

absl::StatusOr<pb::RangeResponse> EtcdClient::Range(const pb::RangeRequest& request) {
  for (std::size_t attempt = 1;; ++attempt) {
    absl::StatusOr<pb::RangeResponse> response = Call(&Member::kv, &pb::KV::Stub::Range, request);
    if (!absl::IsUnavailable(response.status()) || attempt >= members_.size()) return response;
  }
}

absl::StatusOr<pb::TxnResponse> EtcdClient::Txn(const pb::TxnRequest& request) {
  return Call(&Member::kv, &pb::KV::Stub::Txn, request);
}

absl::StatusOr<std::int64_t> EtcdClient::GrantLease(absl::Duration lease) {
  pb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(lease));
  ASSIGN_OR_RETURN(const pb::LeaseGrantResponse response,
                   Call(&Member::lease, &pb::Lease::Stub::LeaseGrant, request));
  return response.id();
}

absl::Status EtcdClient::KeepLease(std::int64_t id, absl::Duration timeout) {
  const std::size_t asked = current_;
  const Member& member = *members_[asked % members_.size()];
  grpc::ClientContext context;
  Prepare(context, timeout);
  const auto stream = member.lease->LeaseKeepAlive(&context);
  pb::LeaseKeepAliveRequest request;
  request.set_id(id);
  pb::LeaseKeepAliveResponse response;
  const bool answered = stream->Write(request) && stream->Read(&response);
  context.TryCancel();  // otherwise the member would keep the stream
  const grpc::Status end = stream->Finish();
  if (!answered) {
    std::size_t expected = asked;
    current_.compare_exchange_strong(expected, asked + 1);
    const absl::Status status = Explain(end, member.address);
    return status.ok() ? absl::UnavailableError(
                             absl::StrCat("etcd at ", member.address, " ended the stream"))
                       : status;
  }
  RETURN_IF_ERROR(CheckCluster(member, response.header()));
  if (response.ttl() > 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("etcd at ", member.address, ": the lease has expired"));
}

absl::Status EtcdClient::RevokeLease(std::int64_t id) {
  pb::LeaseRevokeRequest request;
  request.set_id(id);
  return Call(&Member::lease, &pb::Lease::Stub::LeaseRevoke, request).status();
}

}  // namespace takt::etcd
