// SPDX-License-Identifier: Apache-2.0
// Gives OpenSSL's objects owners and turns its errors into ours.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace takt::certificates {

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;

// Returns kInternal with the oldest error of OpenSSL's queue, and empties the queue.
absl::Status SslError(const std::string& what);

// Returns the whole file. Errors: kNotFound, kPermissionDenied, else kUnavailable.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status FileError(const std::string& path, int error);

// Returns all certificates of a PEM text, in its order. what: names the text in errors. Errors:
// kInvalidArgument (it has no certificate).
absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& pem,
                                                          const std::string& what);
absl::StatusOr<Key> ReadKey(const std::string& pem, const std::string& what);

std::vector<std::string> UrisOf(const X509* certificate);
absl::Time ToTime(const ASN1_TIME* time);

}  // namespace takt::certificates
