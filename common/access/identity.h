// SPDX-License-Identifier: Apache-2.0
// Who speaks: what a certificate's SAN URI says, spiffe://DOMAIN/takt/ROLE/NAME.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace takt::access {

enum class Role : std::uint8_t {
  kNobody,  // showed no certificate
  kCoordinator,
  kWorker,
  kUser,
  kAdmin,
  // Over a Unix socket, or over TCP with --insecure: whoever got there may do everything.
  kTrusted,
};

// "coordinator", "worker", ...
absl::string_view Name(Role role);

struct Identity {
  Role role = Role::kNobody;
  std::string name = {};  // letters, digits, '.', '_', '-'; empty for kNobody and kTrusted
  std::string domain = {};

  // "user/alice"; without a name the role alone. Unique within a domain.
  std::string ToString() const;
  std::string Uri() const;
  bool operator==(const Identity&) const = default;
};

// 1 to 63 letters, digits, '.', '_' or '-', not "." or "..": of domains and names.
bool IsName(absl::string_view text);

// One of the roles that certificates are issued for. kInvalidArgument (FieldError on ROLE).
absl::StatusOr<Role> ParseRole(absl::string_view name);

// kInvalidArgument (FieldError): not of that form.
absl::StatusOr<Identity> ParseUri(absl::string_view uri);

}  // namespace takt::access
