// SPDX-License-Identifier: Apache-2.0
#include "cli/client/connect.h"

#include <utility>

#include "cli/client/local_address.h"
#include "common/base/status.h"

namespace takt::cli {

absl::StatusOr<std::string> CoordinatorAddress(const Context& context) {
  if (!context.coordinator.empty()) return context.coordinator;
  if (auto address = context.environment("TAKT_COORDINATOR"); address && !address->empty()) {
    return *address;
  }
  if (auto address = ReadLocalAddress(DefaultStateDirectory(context))) return *address;
  return absl::UnavailableError(
      "no coordinator is named and no local one runs; give --coordinator HOST:PORT or unix:PATH, "
      "set "
      "TAKT_COORDINATOR, or start one with: takt local up");
}

absl::StatusOr<ClientOptions> ClientOptionsOf(const Context& context) {
  ASSIGN_OR_RETURN(std::string address, CoordinatorAddress(context));
  const auto given = [&](const std::string& option, const char* variable) {
    return option.empty() ? context.environment(variable).value_or("") : option;
  };
  certificates::TlsFiles tls = {
      .certificate = given(context.tls.certificate, "TAKT_TLS_CERTIFICATE"),
      .key = given(context.tls.key, "TAKT_TLS_KEY"),
      .authority = given(context.tls.authority, "TAKT_TLS_AUTHORITY")};
  const bool insecure = context.insecure || context.environment("TAKT_INSECURE") == "1";
  return ClientOptions{.address = std::move(address),
                       .tls = std::move(tls),
                       .insecure = insecure,
                       .call_timeout = context.timeout()};
}

absl::StatusOr<std::unique_ptr<Client>> ConnectToCoordinator(const Context& context) {
  ASSIGN_OR_RETURN(ClientOptions options, ClientOptionsOf(context));
  return Client::Connect(std::move(options));
}

}  // namespace takt::cli
