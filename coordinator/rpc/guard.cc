// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/guard.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/access/decide.h"
#include "common/access/method_table.h"
#include "common/base/log.h"
#include "common/rpc/credentials.h"

namespace takt::coordinator_rpc {
namespace {

class GuardProcessor final : public grpc::AuthMetadataProcessor {
 public:
  GuardProcessor(Guard* guard, std::string domain) : guard_(guard), domain_(std::move(domain)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    const auto path = metadata.find(":path");
    const std::string method =
        path != metadata.end() ? std::string(path->second.data(), path->second.size()) : "";
    const Deed deed{.who = rpc::PeerOf(*context, domain_), .method = method};
    const absl::Status status = guard_->Admit(deed.who, method);
    if (status.ok()) return grpc::Status::OK;
    // Not of those who ask too often: they would fill the log.
    if (!absl::IsResourceExhausted(status)) deed.Audit(status);
    // Its FieldError cannot travel from here: the message says all of it.
    return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
  }

 private:
  Guard* const guard_;
  const std::string domain_;
};

}  // namespace

void Deed::Audit(const absl::Status& outcome) const {
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
  const absl::Duration now = Moment::Of(*options_.clock).steady;
  {
    absl::MutexLock lock(&mutex_);
    if (!limiter_.Allow(who.ToString(), now)) {
      return absl::ResourceExhaustedError(absl::StrCat(who.ToString(), " makes more than ",
                                                       options_.rate.per_second,
                                                       " calls a second; slow down"));
    }
  }
  return access::MayCall(who, method);
}

std::shared_ptr<grpc::AuthMetadataProcessor> Guard::Processor() {
  return std::make_shared<GuardProcessor>(this, options_.domain.value_or(""));
}

}  // namespace takt::coordinator_rpc
