// SPDX-License-Identifier: Apache-2.0
#include "common/access/decide.h"

#include "absl/strings/str_cat.h"
#include "common/access/method_table.h"
#include "common/base/status.h"

namespace takt::access {
namespace {

absl::Status Refused(const Identity& who, std::string rule, std::string fix) {
  const bool unknown = who.role == Role::kNobody;
  const absl::Status text = InvalidField({.field = "certificate",
                                          .value = who.ToString(),
                                          .rule = std::move(rule),
                                          .fix = std::move(fix)});
  absl::Status status(
      unknown ? absl::StatusCode::kUnauthenticated : absl::StatusCode::kPermissionDenied,
      text.message());
  if (const auto detail = text.GetPayload(kErrorDetailUrl))
    status.SetPayload(kErrorDetailUrl, *detail);
  return status;
}

}  // namespace

absl::Status MayCall(const Identity& who, absl::string_view method) {
  if (who.role == Role::kTrusted) return absl::OkStatus();
  const MethodRule* const rule = FindRule(method);
  if (rule == nullptr) {
    return Refused(who, absl::StrCat("may not call ", method, ": nobody may"),
                   "check that client and coordinator are of one version");
  }
  if (rule->who.Has(who.role)) return absl::OkStatus();
  return Refused(who, absl::StrCat("may not call ", method),
                 absl::StrCat("use a certificate of role ", rule->who.ToString()));
}

absl::Status MayUseJob(const Identity& who, absl::string_view job, absl::string_view owner) {
  if (who.role == Role::kTrusted || who.role == Role::kAdmin) return absl::OkStatus();
  if (who.role == Role::kUser && who.ToString() == owner) return absl::OkStatus();
  return Refused(who, absl::StrCat("does not own job ", job),
                 "use the certificate that submitted it, or one of role admin");
}

absl::Status MaySpeakFor(const Identity& who, absl::string_view worker) {
  if (who.role == Role::kTrusted) return absl::OkStatus();
  if (who.role == Role::kWorker && who.name == worker) return absl::OkStatus();
  if (who.role == Role::kHost) {
    if (!who.name.empty() && HostOf(worker) == who.name) return absl::OkStatus();
    return Refused(who, absl::StrCat("may not speak for worker ", worker),
                   absl::StrCat("name the workers of this host ", who.name, "-0, ", who.name,
                                "-1 and so on, or let this one attach without the relay"));
  }
  return Refused(who, absl::StrCat("may not speak for worker ", worker),
                 "give the worker the --name that its certificate has");
}

absl::Status MayMeet(const Identity& who, absl::string_view job, bool holds_rank) {
  if (who.role == Role::kTrusted) return absl::OkStatus();
  if ((who.role == Role::kWorker || who.role == Role::kHost) && holds_rank) return absl::OkStatus();
  return Refused(who, absl::StrCat("holds no rank of job ", job),
                 "nothing: the job has moved to other workers, or never was here");
}

}  // namespace takt::access
