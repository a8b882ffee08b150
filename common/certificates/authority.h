// SPDX-License-Identifier: Apache-2.0
// A small private certificate authority in a directory: enough to close a cluster to strangers
// where no larger one is at hand. Keys are P-256, files of mode 0600.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/access/identity.h"

namespace takt::certificates {

struct IssueOptions {
  access::Identity identity;       // its domain is the authority's
  std::vector<std::string> hosts;  // names and addresses at which a coordinator is reached
  absl::Duration validity;
  absl::Time now;
  // In the place of an older certificate, for the same key: one file changes, at once.
  bool renew = false;
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
// (no authority there; renew: no key), kAlreadyExists (files of that name), kInvalidArgument (name,
// host), others: the disk's.
absl::StatusOr<IssuedFiles> IssueCertificate(const std::string& directory, const std::string& out,
                                             const IssueOptions& options);

// What somebody without a certificate sends to the authority, and the key that stays with him.
struct Request {
  std::string key, text;  // PEM; PKCS #10 in PEM
};
absl::StatusOr<Request> MakeRequest();

// A certificate (PEM) of `options.identity` for the key of a request, of which nothing else counts.
// kInvalidArgument: not a request, or not signed by its key.
absl::StatusOr<std::string> CertifyRequest(const std::string& directory, const std::string& request,
                                           const IssueOptions& options);

// Writes what CertifyRequest gave, as IssueCertificate does: OUT/NAME.pem and OUT/NAME.key.
absl::StatusOr<IssuedFiles> WriteIssued(const std::string& out, const std::string& key,
                                        const std::string& certificate);

}  // namespace takt::certificates
