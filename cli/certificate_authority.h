// SPDX-License-Identifier: Apache-2.0
// A small private certificate authority in a directory: enough to close a cluster to strangers
// where no larger one is at hand. Keys are P-256, files of mode 0600.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace takt::cli {

// Who a certificate speaks for: the last two parts of its SAN URI,
// spiffe://DOMAIN/takt/ROLE/NAME.
struct Identity {
  std::string role;  // coordinator, worker, user or admin
  std::string name;  // letters, digits, '.', '_', '-'
};

struct IssueOptions {
  Identity identity;
  std::vector<std::string> hosts;  // names and addresses at which a coordinator is reached
  absl::Duration validity;
  absl::Time now;
};

struct IssuedFiles {
  std::string certificate, key;  // paths
  std::string uri;
  absl::Time expires;
};

// Makes DIR/ca.pem and DIR/ca.key. Errors: kAlreadyExists (there is one: it is never overwritten),
// kInvalidArgument (domain), others: the disk's.
absl::Status CreateAuthority(const std::string& directory, const std::string& domain,
                             absl::Time now);

// Writes OUT/NAME.pem and OUT/NAME.key, signed by the authority in `directory`. Errors: kNotFound
// (no authority there), kAlreadyExists (files of that name), kInvalidArgument (role, name, host),
// others: the disk's.
absl::StatusOr<IssuedFiles> IssueCertificate(const std::string& directory, const std::string& out,
                                             const IssueOptions& options);

}  // namespace takt::cli
