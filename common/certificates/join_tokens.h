// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace takt::certificates {

// The tokens that workers without a certificate may show once. It keeps hashes, not tokens. One
// thread at a time.
class JoinTokens final {
 public:
  // Errors: kResourceExhausted (too many tokens are out).
  absl::StatusOr<std::string> Create(const std::string& worker, absl::Duration lifetime,
                                     absl::Time now);

  // Returns the worker that the token is for. Errors: kPermissionDenied (the token is unknown, used
  // or expired).
  absl::StatusOr<std::string> Find(const std::string& token, absl::Time now) const;
  // Does the same, and the token is used up.
  absl::StatusOr<std::string> Redeem(const std::string& token, absl::Time now);

 private:
  struct Grant {
    std::string worker;
    absl::Time expires;
  };
  std::map<std::string, Grant> grants_;  // by hash
};

}  // namespace takt::certificates
