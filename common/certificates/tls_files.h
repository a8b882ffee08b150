// SPDX-License-Identifier: Apache-2.0
// The three files with which a process shows who it is and knows whom to believe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/access/identity.h"

namespace takt::certificates {

struct TlsFiles {
  std::string certificate;  // PEM: its own, then those between it and the authority's
  std::string key;          // PEM: of the certificate; nobody else may read it
  std::string authority;    // PEM: who signs those that are believed

  bool any() const { return !certificate.empty() || !key.empty() || !authority.empty(); }
};

struct CertificateFacts {
  access::Identity identity;
  absl::Time not_before, not_after;
};

// Reads all three and says now what would fail at every connection. Errors (FieldError with the
// fix, on --tls-certificate, --tls-key or --tls-authority): one is not given or not readable; the
// key is readable by others, or is another certificate's; the certificate has no identity, is not
// of that authority, or is not valid at `now`, which may be the clock's fault.
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now);

// The authority alone, of who has no certificate yet. FieldError on --tls-authority.
absl::Status CheckAuthority(const TlsFiles& files);

// What the certificate says, without judging it.
absl::StatusOr<CertificateFacts> ReadFacts(const std::string& certificate_path);

// Who may read a private key: its owner; its group only if root owns it, which is how packages and
// Kubernetes give a key to a service's group. FieldError on --tls-key.
absl::Status CheckKeyMode(const std::string& path);

}  // namespace takt::certificates
