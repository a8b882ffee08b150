// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "common/base/bounded_text.h"
#include "common/base/status.h"
#include "takt/v1/error.pb.h"

namespace takt {
namespace {

// Message and details may have this size each. With escapes, three times this stays below the
// limit.
constexpr std::size_t kMaxPartBytes = 12 << 10;

// Returns the detail with as many violations as fit.
std::string FittingDetail(const absl::Cord& payload) {
  std::string bytes(payload);
  v1::ErrorDetail detail;
  if (!detail.ParseFromString(bytes)) return "";
  while (detail.ByteSizeLong() > kMaxPartBytes) detail.mutable_violations()->RemoveLast();
  return detail.violations().empty() ? "" : detail.SerializeAsString();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status, grpc::ServerContextBase& context) {
  if (status.ok()) return grpc::Status::OK;
  if (const auto payload = status.GetPayload(kErrorDetailUrl); payload.has_value()) {
    if (std::string detail = FittingDetail(*payload); !detail.empty()) {
      context.AddTrailingMetadata(kErrorDetailTrailer, detail);
    }
  }
  // Both enumerations have the canonical numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Shortened(std::string(status.message()), kMaxPartBytes));
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find(kErrorDetailTrailer); it != trailers.end()) {
    result.SetPayload(kErrorDetailUrl,
                      absl::Cord(absl::string_view(it->second.data(), it->second.size())));
  }
  return result;
}

}  // namespace takt
