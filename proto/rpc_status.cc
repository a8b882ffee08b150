// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "takt/v1/error.pb.h"

namespace takt {
namespace {

constexpr char kDetailUrl[] =
    "type.googleapis.com/takt.v1.ErrorDetail";  // kErrorDetailUrl of common/base/status.h
constexpr std::size_t kMaxPartBytes =
    12 << 10;  // of message and of details: with escapes, three times this stays below the limit

// Cuts the text after a whole UTF-8 character.
std::string Cut(absl::string_view text) {
  if (text.size() <= kMaxPartBytes) return std::string(text);
  std::size_t end = kMaxPartBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

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
  if (const auto payload = status.GetPayload(kDetailUrl); payload.has_value()) {
    if (std::string detail = FittingDetail(*payload); !detail.empty()) {
      context.AddTrailingMetadata(kErrorDetailTrailer, detail);
    }
  }
  // Both enumerations have the canonical numbers.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Cut(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find(kErrorDetailTrailer); it != trailers.end()) {
    result.SetPayload(kDetailUrl,
                      absl::Cord(absl::string_view(it->second.data(), it->second.size())));
  }
  return result;
}

}  // namespace takt
