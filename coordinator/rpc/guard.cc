// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/guard.h"

#include <arpa/inet.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/access/decide.h"
#include "common/access/method_table.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/credentials.h"

namespace takt::coordinator_rpc {
namespace {

// Others need what only the leader has: workers, traces, plans, and the right to decide.
constexpr absl::string_view kAnsweredByFollowers[] = {
    "/takt.v1.ClusterService/GetVersion",
    "/takt.v1.JobService/GetJob",
    "/takt.v1.JobService/GetJobLogs",
    "/takt.v1.JobService/ListJobs",
    "/takt.v1.JobService/WatchJob",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
};

absl::Status OnlyTheLeader(const std::string& leader) {
  return absl::UnavailableError(
      leader.empty() ? "this coordinator follows, and none leads yet; ask again"
                     : absl::StrCat("this coordinator follows; ask the one that leads: ", leader));
}

class GuardProcessor final : public grpc::AuthMetadataProcessor {
 public:
  GuardProcessor(Guard* guard, std::string domain) : guard_(guard), domain_(std::move(domain)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    const auto path = metadata.find(":path");
    const std::string method =
        path != metadata.end() ? std::string(path->second.data(), path->second.size()) : "";
    const AuditEntry audit_entry{.who = rpc::PeerOf(*context, domain_), .method = method};
    const absl::Status status = guard_->Admit(audit_entry.who, method);
    if (status.ok()) return grpc::Status::OK;
    // Callers that ask too often, or the wrong coordinator, would fill the log.
    if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status))
      audit_entry.Write(status);
    // No FieldError can be sent from here, so the message says all of it.
    return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
  }

 private:
  Guard* const guard_;
  const std::string domain_;
};

}  // namespace

void AuditEntry::Write(const absl::Status& outcome) const {
  const access::MethodRule* const rule = access::FindRule(method);
  const bool refused = absl::IsPermissionDenied(outcome) || absl::IsUnauthenticated(outcome);
  if (!refused && (rule == nullptr || !rule->changes)) return;
  LogAudit({{"who", who.ToString()},
            {"what", method},
            {"subject", subject},
            {"outcome", absl::StatusCodeToString(outcome.code())},
            {"reason", std::string(outcome.message())}});
}

Guard::Guard(GuardOptions options) : options_(std::move(options)), limiter_(options_.rate) {}

access::Identity Guard::CallerOf(const grpc::ServerContextBase& context) const {
  if (!options_.domain) return {.role = access::Role::kTrusted};
  const auto peer = context.auth_context();
  return peer != nullptr ? rpc::PeerOf(*peer, *options_.domain) : access::Identity{};
}

absl::Status Guard::Admit(const access::Identity& who, absl::string_view method) {
  if (who.role == access::Role::kTrusted) return absl::OkStatus();
  const absl::Status allowed = access::MayCall(who, method);
  const bool counted_later = who.role == access::Role::kNobody && allowed.ok();
  if (!counted_later) RETURN_IF_ERROR(Count(who.ToString()));
  RETURN_IF_ERROR(allowed);
  const bool answers = !options_.leader || std::ranges::find(kAnsweredByFollowers, method) !=
                                               std::end(kAnsweredByFollowers);
  return answers ? absl::OkStatus() : OnlyTheLeader(options_.leader());
}

absl::Status Guard::AdmitStranger(const grpc::ServerContextBase& context) {
  if (CallerOf(context).role != access::Role::kNobody) return absl::OkStatus();
  return Count(NetworkOf(context.peer()));
}

absl::Status Guard::Count(const std::string& who) {
  const absl::Duration now = Moment::Of(*options_.clock).steady;
  absl::MutexLock lock(&mutex_);
  if (limiter_.Allow(who, now)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      who, " makes more than ", options_.rate.per_second, " calls a second; slow down"));
}

std::shared_ptr<grpc::AuthMetadataProcessor> Guard::Processor() {
  return std::make_shared<GuardProcessor>(this, options_.domain.value_or(""));
}

std::string NetworkOf(const std::string& peer) {
  const std::string address = peer.substr(0, peer.rfind(':'));
  const std::string kind = address.substr(0, address.find(':'));
  if (kind != "ipv6") return address;
  std::string host = absl::StrReplaceAll(address.substr(kind.size() + 1),
                                         {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  host = host.substr(0, host.find('%'));  // without the interface
  in6_addr bytes{};
  if (inet_pton(AF_INET6, host.c_str(), &bytes) != 1 || IN6_IS_ADDR_V4MAPPED(&bytes))
    return address;
  std::fill(std::begin(bytes.s6_addr) + 8, std::end(bytes.s6_addr), 0);
  char text[INET6_ADDRSTRLEN];
  inet_ntop(AF_INET6, &bytes, text, sizeof(text));
  return absl::StrCat("ipv6:", text, "/64");
}

}  // namespace takt::coordinator_rpc
