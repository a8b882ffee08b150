// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/endpoint.h"

#include <sys/un.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::rpc {
namespace {

constexpr std::size_t kUnixPrefix = 5;  // "unix:"
constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
// gRPC 1.51 cannot be told a least version. Its list of suites only matters up to TLS 1.2. This
// suite needs a shared key that neither side has, so no such handshake succeeds.
constexpr char kSuiteOfNobody[] = "ECDHE-PSK-CHACHA20-POLY1305";

absl::Status CheckAddress(const Endpoint& endpoint) {
  if (endpoint.is_unix()) {
    const std::size_t length = endpoint.address.size() - kUnixPrefix;
    if (length > 0 && length <= kMaxSocketPath) return absl::OkStatus();
    return InvalidField({.field = endpoint.flag,
                         .value = endpoint.address,
                         .rule = absl::StrCat("the path of a Unix socket has 1 to ", kMaxSocketPath,
                                              " bytes, not ", length),
                         .fix = "give a shorter path, e.g. under /run or /tmp"});
  }
  const std::size_t colon = endpoint.address.rfind(':');
  const bool whole =
      colon != std::string::npos && colon > 0 && colon + 1 < endpoint.address.size() &&
      endpoint.address.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (whole) return absl::OkStatus();
  return InvalidField({.field = endpoint.flag,
                       .value = endpoint.address,
                       .rule = "must be unix:PATH or HOST:PORT",
                       .fix = "e.g. unix:/run/takt/coordinator.sock or 10.0.0.1:7070"});
}

}  // namespace

void RequireTls13() {
  setenv("GRPC_SSL_CIPHER_SUITES", kSuiteOfNobody, 1);  // NOLINT(concurrency-mt-unsafe)
}

absl::Status CheckEndpoint(const Endpoint& endpoint, absl::Time now) {
  RETURN_IF_ERROR(CheckAddress(endpoint));
  if (endpoint.is_unix()) return absl::OkStatus();
  if (endpoint.insecure && endpoint.tls.any()) {
    return InvalidField({.field = "--insecure",
                         .rule = "contradicts --tls-certificate, --tls-key and --tls-authority",
                         .fix = "leave it out"});
  }
  if (endpoint.insecure) return absl::OkStatus();
  if (!endpoint.tls.any()) {
    return InvalidField({.field = endpoint.flag,
                         .value = endpoint.address,
                         .rule = "TCP without certificates lets anyone who reaches the port run "
                                 "jobs and read their secrets",
                         .fix =
                             "give --tls-certificate, --tls-key and --tls-authority (`takt certs` "
                             "makes them), or use unix:PATH, or add --insecure if everyone on "
                             "that network may do this"});
  }
  if (endpoint.joins) return certificates::CheckAuthority(endpoint.tls);
  return certificates::CheckTlsFiles(endpoint.tls, now).status();
}

std::string ExplainTlsFailure(const std::string& message, absl::Time now) {
  if (absl::StrContains(message, "certificate verify failed")) {
    return absl::StrCat(
        "the coordinator's certificate is not believed: it is of another authority than "
        "--tls-authority, or has expired, or this machine's clock is wrong (it says ",
        absl::FormatTime(now, absl::UTCTimeZone()), ")");
  }
  if (absl::StrContains(message, "Hostname Verification Check failed")) {
    return "the coordinator's certificate is for other names than the one dialled: dial one of "
           "those, or issue it again with this one as --host";
  }
  if (absl::StrContains(message, "failed to connect") &&
      (absl::StrContains(message, "Socket closed") ||
       absl::StrContains(message, "Connection reset"))) {
    return absl::StrCat(
        "the coordinator hung up during the handshake: it wants a certificate that it believes, "
        "and was shown none, or one of another authority, or one that is not valid by its clock "
        "(this machine's says ",
        absl::FormatTime(now, absl::UTCTimeZone()), ")");
  }
  if (absl::StrContains(message, "WRONG_VERSION_NUMBER") ||
      absl::StrContains(message, "wrong version number")) {
    return "the coordinator speaks no TLS there: it was started with --insecure, or this is "
           "another program's port";
  }
  return "";
}

}  // namespace takt::rpc
