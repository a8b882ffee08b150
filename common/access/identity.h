// SPDX-License-Identifier: Apache-2.0
// The identity of a peer, as the SAN URI of its certificate says it:
// spiffe://DOMAIN/takt/ROLE/NAME.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace takt::access {

enum class Role : std::uint8_t {
  kNobody,  // the peer showed no certificate
  kCoordinator,
  kWorker,
  kHost,  // the relay of a host, which carries the streams of the workers there
  kUser,
  kAdmin,
  // The peer came over a Unix socket, or over TCP with --insecure. It may do everything.
  kTrusted,
};

// Returns "coordinator", "worker", ...
absl::string_view Name(Role role);

struct Identity {
  Role role = Role::kNobody;
  std::string name = {};  // letters, digits, '.', '_', '-'; empty for kNobody and kTrusted
  std::string domain = {};

  // Returns "user/alice", or the role alone if there is no name. It is unique within a domain.
  std::string ToString() const;
  std::string Uri() const;
  bool operator==(const Identity&) const = default;
};

// Whether `text` can be a domain or a name: 1 to 63 letters, digits, '.', '_' or '-', but not "."
// or "..".
bool IsName(absl::string_view text);

// Returns the host of a worker: "n1" of "n1-0". It is empty unless the worker's name is that of a
// host, a hyphen and digits. So no two hosts have a worker in common.
absl::string_view HostOf(absl::string_view worker);

// Reads one of the roles that certificates are issued for. Errors: kInvalidArgument (FieldError on
// ROLE).
absl::StatusOr<Role> ParseRole(absl::string_view name);

// Reads the identity from a URI. Errors: kInvalidArgument (FieldError): the URI has another form.
absl::StatusOr<Identity> ParseUri(absl::string_view uri);

}  // namespace takt::access
