// SPDX-License-Identifier: Apache-2.0
// A small private certificate authority in a directory. It keeps strangers out of a cluster where
// no other authority is available. Its keys are P-256; its key files have mode 0600.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/access/identity.h"

namespace takt::certificates {

struct IssueOptions {
  access::Identity identity;       // its domain is that of the authority
  std::vector<std::string> hosts;  // names and addresses at which a coordinator is reached
  absl::Duration validity;
  absl::Time now;
  // The certificate replaces an older one for the same key. Only that file changes, atomically.
  bool renew = false;
};

struct IssuedFiles {
  std::string certificate, key;  // paths
  std::string uri;
  absl::Time expires;
};

// Makes DIR/ca.pem and DIR/ca.key. Errors: kAlreadyExists (an authority is there, and is never
// overwritten), kInvalidArgument (domain), or those of the disk.
absl::Status CreateAuthority(const std::string& directory, const std::string& domain,
                             absl::Time now);

// Writes OUT/NAME.pem and OUT/NAME.key, signed by the authority in `directory`. Errors: kNotFound
// (no authority there; with `renew`: no key), kAlreadyExists (files of that name), kInvalidArgument
// (name, host), or those of the disk.
absl::StatusOr<IssuedFiles> IssueCertificate(const std::string& directory, const std::string& out,
                                             IssueOptions options);

// A request for a certificate, which its maker sends to the authority, and the key, which the maker
// keeps.
struct Request {
  std::string key, text;  // PEM; PKCS #10 in PEM
};
absl::StatusOr<Request> MakeRequest();

// Returns a certificate (PEM) of `options.identity` for the key of a request. Nothing else in the
// request counts. Errors: kInvalidArgument (not a request, or not signed by its key).
absl::StatusOr<std::string> CertifyRequest(const std::string& directory, const std::string& request,
                                           IssueOptions options);

// Writes the answer of CertifyRequest as IssueCertificate does, to OUT/NAME.pem and OUT/NAME.key.
absl::StatusOr<IssuedFiles> WriteIssued(const std::string& out, const std::string& key,
                                        const std::string& certificate);

}  // namespace takt::certificates
