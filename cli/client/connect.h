// SPDX-License-Identifier: Apache-2.0
// Connects to the coordinator that the options and the environment name.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "cli/client/client.h"

namespace takt::cli {

// Returns the address of the coordinator: --coordinator, else TAKT_COORDINATOR, else that of `takt
// local up`. kUnavailable: none is named and no local cluster runs.
absl::StatusOr<std::string> CoordinatorAddress(const Context& context);
// Returns the address with the certificates and the time limit of the options and the environment.
absl::StatusOr<ClientOptions> ClientOptionsOf(const Context& context);
absl::StatusOr<std::unique_ptr<Client>> ConnectToCoordinator(const Context& context);

}  // namespace takt::cli
