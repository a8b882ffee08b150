// SPDX-License-Identifier: Apache-2.0
// The three files with which a process proves its identity and decides which peers to trust.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/access/identity.h"

namespace takt::certificates {

struct TlsFiles {
  std::string certificate;  // PEM: its own, then those between it and the authority's
  std::string key;          // PEM: the certificate's key; nobody else may read it
  std::string authority;    // PEM: the certificates whose signatures are trusted

  bool any() const { return !certificate.empty() || !key.empty() || !authority.empty(); }
};

struct CertificateFacts {
  access::Identity identity;
  absl::Time not_before, not_after;
};

// Reads all three files and reports now what would fail at every connection. Errors (FieldError
// with the fix, on --tls-certificate, --tls-key or --tls-authority): a file is not given or not
// readable; others can read the key, or it belongs to another certificate; the certificate has no
// identity, was not signed by that authority, or is not valid at `now`, for which the clock may be
// to blame.
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now);

// Checks the authority's file alone, for a process that has no certificate yet. Errors: FieldError
// on --tls-authority.
absl::Status CheckAuthority(const TlsFiles& files);

// Returns what the certificate says, without checking it.
absl::StatusOr<CertificateFacts> ReadFacts(const std::string& certificate_path);

// Checks that only the owner can read a private key. Its group may read it too if root owns it,
// which is how packages and Kubernetes give a key to a service's group. Errors: FieldError on
// --tls-key.
absl::Status CheckKeyMode(const std::string& path);

}  // namespace takt::certificates
