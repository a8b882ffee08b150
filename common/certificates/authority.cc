// SPDX-License-Identifier: Apache-2.0
#include "common/certificates/authority.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/certificates/openssl.h"

namespace takt::certificates {
namespace {

constexpr char kCaCertificate[] = "/ca.pem";
constexpr char kCaKey[] = "/ca.key";
constexpr char kUriPrefix[] = "spiffe://";
constexpr absl::Duration kAuthorityValidity = absl::Hours(24 * 3650);
constexpr absl::Duration kClockSkew = absl::Minutes(5);  // between issuer and verifier

absl::Status CheckName(const std::string& field, const std::string& value) {
  if (access::IsName(value)) return absl::OkStatus();
  return InvalidField({.field = field,
                       .value = value,
                       .rule = "must be 1 to 63 letters, digits, '.', '_' or '-'",
                       .fix = "choose another name"});
}

bool IsAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// A host name becomes part of OpenSSL's extension syntax, so it may have nothing but these
// characters.
bool IsHostName(absl::string_view host) {
  absl::ConsumePrefix(&host, "*.");
  return !absl::StrContains(host, "_") && access::IsName(host);
}

absl::StatusOr<std::string> SanOf(const std::string& uri, const std::vector<std::string>& hosts) {
  std::string san = absl::StrCat("URI:", uri);
  for (const std::string& host : hosts) {
    if (IsAddress(host)) {
      absl::StrAppend(&san, ",IP:", host);
    } else if (IsHostName(host)) {
      absl::StrAppend(&san, ",DNS:", host);
    } else {
      return InvalidField({.field = "--host",
                           .value = host,
                           .rule = "is neither a host's name nor an address",
                           .fix = "name the coordinator as its clients dial it, without a port"});
    }
  }
  return san;
}

// Writes a file whole or not at all. replace: it may take the place of an older file.
absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode,
                       bool replace = false) {
  const std::string written_path = replace ? path + ".new" : path;
  const int fd = open(written_path.c_str(),
                      O_WRONLY | O_CREAT | O_CLOEXEC | (replace ? O_TRUNC : O_EXCL), mode);
  if (fd < 0) return FileError(written_path, errno);
  bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  int error = errno;
  close(fd);
  if (written && replace) {
    written = rename(written_path.c_str(), path.c_str()) == 0;
    error = errno;
  }
  if (written) return absl::OkStatus();
  unlink(written_path.c_str());
  return FileError(path, error);
}

// Writes two new files into `directory`, which it makes if need be. If the certificate cannot be
// written, the key does not stay.
absl::StatusOr<IssuedFiles> WriteNew(const std::string& directory, IssuedFiles files,
                                     const std::string& key, const std::string& certificate) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return FileError(directory, errno);
  RETURN_IF_ERROR(WriteFile(files.key, key, 0600));
  const absl::Status written = WriteFile(files.certificate, certificate, 0644);
  if (written.ok()) return files;
  unlink(files.key.c_str());
  return written;
}

template <class Write>
absl::StatusOr<std::string> Pem(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return SslError("cannot write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

absl::StatusOr<std::string> PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

absl::StatusOr<std::string> PemOf(EVP_PKEY* key) {
  return Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return SslError("cannot make a key");
  return key;
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// Makes a certificate with serial, names, validity and key. The caller adds extensions and the
// signature.
absl::StatusOr<Certificate> NewCertificate(EVP_PKEY* key, const std::string& common_name,
                                           absl::Time now, absl::Duration validity) {
  Certificate certificate(X509_new());
  unsigned char serial[16];
  if (certificate == nullptr || RAND_bytes(serial, sizeof(serial)) != 1)
    return SslError("cannot make a certificate");
  serial[0] &= 0x7f;  // makes the number positive
  BIGNUM* number = BN_bin2bn(serial, sizeof(serial), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(now - kClockSkew));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(now + validity));
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  return certificate;
}

absl::Status Sign(X509* certificate, X509* issuer, EVP_PKEY* issuer_key) {
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
  if (!AddExtension(certificate, issuer, NID_authority_key_identifier, "keyid") ||
      X509_sign(certificate, issuer_key, EVP_sha256()) == 0) {
    return SslError("cannot sign");
  }
  return absl::OkStatus();
}

using CertificateRequest = std::unique_ptr<X509_REQ, Freed<X509_REQ_free>>;

struct Authority {
  Certificate certificate;
  Key key;
  std::string domain;
};

absl::StatusOr<Authority> LoadAuthority(const std::string& directory) {
  const std::string certificate_path = directory + kCaCertificate;
  const absl::StatusOr<std::string> certificate_text = ReadFile(certificate_path);
  if (!certificate_text.ok()) {
    return absl::NotFoundError(absl::StrCat(certificate_text.status().message(),
                                            "; make an authority with `takt certs init`"));
  }
  ASSIGN_OR_RETURN(const std::string key_text, ReadFile(directory + kCaKey));
  ASSIGN_OR_RETURN(std::vector<Certificate> certificates,
                   ReadCertificates(*certificate_text, certificate_path));
  Authority authority{.certificate = std::move(certificates.front())};
  ASSIGN_OR_RETURN(authority.key, ReadKey(key_text, directory + kCaKey));
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    return absl::DataLossError(
        absl::StrCat(directory, ": ca.key is not the key of ca.pem; restore both from one backup"));
  }
  for (const std::string& uri : UrisOf(authority.certificate.get())) {
    absl::string_view domain = uri;
    if (absl::ConsumePrefix(&domain, kUriPrefix)) authority.domain = std::string(domain);
  }
  if (authority.domain.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(certificate_path, " names no trust domain; make it with `takt certs init`"));
  }
  return authority;
}

// Returns the certificate of an identity, in PEM. It is for the holder of the private part of
// `key`.
absl::StatusOr<std::string> Certify(const Authority& authority, EVP_PKEY* key,
                                    const IssueOptions& options) {
  ASSIGN_OR_RETURN(const std::string san, SanOf(options.identity.Uri(), options.hosts));
  ASSIGN_OR_RETURN(const Certificate certificate,
                   NewCertificate(key, options.identity.name, options.now, options.validity));
  X509* const leaf = certificate.get();
  X509* const ca = authority.certificate.get();
  const bool serves = options.identity.role == access::Role::kCoordinator;
  if (!AddExtension(leaf, ca, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(leaf, ca, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(leaf, ca, NID_ext_key_usage, serves ? "serverAuth,clientAuth" : "clientAuth") ||
      !AddExtension(leaf, ca, NID_subject_alt_name, san)) {
    return SslError("cannot make the certificate");
  }
  RETURN_IF_ERROR(Sign(leaf, ca, authority.key.get()));
  return PemOf(leaf);
}

IssuedFiles FilesIn(const std::string& directory, const access::Identity& identity,
                    absl::Time expires) {
  const std::string stem = absl::StrCat(directory, "/", identity.name);
  return {.certificate = stem + ".pem",
          .key = stem + ".key",
          .uri = identity.Uri(),
          .expires = expires};
}

}  // namespace

absl::Status CreateAuthority(const std::string& directory, const std::string& domain,
                             absl::Time now) {
  RETURN_IF_ERROR(CheckName("--domain", domain));
  ASSIGN_OR_RETURN(const Key key, NewKey());
  ASSIGN_OR_RETURN(const Certificate certificate,
                   NewCertificate(key.get(), "Takt " + domain, now, kAuthorityValidity));
  X509* ca = certificate.get();
  if (!AddExtension(ca, ca, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(ca, ca, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(ca, ca, NID_subject_key_identifier, "hash") ||
      !AddExtension(ca, ca, NID_subject_alt_name, absl::StrCat("URI:", kUriPrefix, domain))) {
    return SslError("cannot make the authority's certificate");
  }
  RETURN_IF_ERROR(Sign(ca, ca, key.get()));
  ASSIGN_OR_RETURN(const std::string key_text, PemOf(key.get()));
  ASSIGN_OR_RETURN(const std::string certificate_text, PemOf(ca));
  return WriteNew(directory, {.certificate = directory + kCaCertificate, .key = directory + kCaKey},
                  key_text, certificate_text)
      .status();
}

absl::StatusOr<IssuedFiles> IssueCertificate(const std::string& directory, const std::string& out,
                                             IssueOptions options) {
  RETURN_IF_ERROR(CheckName("NAME", options.identity.name));
  ASSIGN_OR_RETURN(const Authority authority, LoadAuthority(directory));
  options.identity.domain = authority.domain;
  IssuedFiles files = FilesIn(out, options.identity, options.now + options.validity);
  if (options.renew) {
    ASSIGN_OR_RETURN(const std::string key_text, ReadFile(files.key));
    ASSIGN_OR_RETURN(const Key key, ReadKey(key_text, files.key));
    ASSIGN_OR_RETURN(const std::string certificate, Certify(authority, key.get(), options));
    RETURN_IF_ERROR(WriteFile(files.certificate, certificate, 0644, /*replace=*/true));
    return files;
  }
  ASSIGN_OR_RETURN(const Key key, NewKey());
  ASSIGN_OR_RETURN(const std::string key_text, PemOf(key.get()));
  ASSIGN_OR_RETURN(const std::string certificate, Certify(authority, key.get(), options));
  return WriteNew(out, std::move(files), key_text, certificate);
}

absl::StatusOr<Request> MakeRequest() {
  ASSIGN_OR_RETURN(const Key key, NewKey());
  const CertificateRequest request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return SslError("cannot make a request");
  }
  ASSIGN_OR_RETURN(std::string key_text, PemOf(key.get()));
  ASSIGN_OR_RETURN(std::string text,
                   Pem([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); }));
  return Request{.key = std::move(key_text), .text = std::move(text)};
}

absl::StatusOr<std::string> CertifyRequest(const std::string& directory, const std::string& request,
                                           IssueOptions options) {
  RETURN_IF_ERROR(CheckName("NAME", options.identity.name));
  ASSIGN_OR_RETURN(const Authority authority, LoadAuthority(directory));
  options.identity.domain = authority.domain;
  const Bio bio(BIO_new_mem_buf(request.data(), static_cast<int>(request.size())));
  const CertificateRequest parsed(PEM_read_bio_X509_REQ(bio.get(), nullptr, nullptr, nullptr));
  EVP_PKEY* const key = parsed != nullptr ? X509_REQ_get0_pubkey(parsed.get()) : nullptr;
  if (key == nullptr || X509_REQ_verify(parsed.get(), key) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a request that its key signed: ", SslError("PKCS #10").message()));
  }
  return Certify(authority, key, options);
}

absl::StatusOr<IssuedFiles> WriteIssued(const std::string& out, const std::string& key,
                                        const std::string& certificate) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> parsed,
                   ReadCertificates(certificate, "the answer"));
  const std::vector<std::string> uris = UrisOf(parsed.front().get());
  ASSIGN_OR_RETURN(const access::Identity identity, access::ParseUri(uris.empty() ? "" : uris[0]));
  const absl::Time expires = ToTime(X509_get0_notAfter(parsed.front().get()));
  return WriteNew(out, FilesIn(out, identity, expires), key, certificate);
}

}  // namespace takt::certificates
