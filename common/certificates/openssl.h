// SPDX-License-Identifier: Apache-2.0
// OpenSSL's objects with owners, and its errors as ours.
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

// kInternal with the oldest error of OpenSSL's queue, which is emptied.
absl::Status SslError(const std::string& what);

// The whole file. kNotFound, kPermissionDenied, else kUnavailable.
absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status FileError(const std::string& path, int error);

// All certificates of a PEM text, in its order; kInvalidArgument: there is none. what: for errors.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& pem,
                                                          const std::string& what);
absl::StatusOr<Key> ReadKey(const std::string& pem, const std::string& what);

std::vector<std::string> UrisOf(const X509* certificate);
absl::Time ToTime(const ASN1_TIME* time);

}  // namespace takt::certificates
