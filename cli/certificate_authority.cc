// SPDX-License-Identifier: Apache-2.0
#include "cli/certificate_authority.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

constexpr char kCaCertificate[] = "/ca.pem";
constexpr char kCaKey[] = "/ca.key";
constexpr char kUriPrefix[] = "spiffe://";
constexpr std::array<const char*, 4> kRoles = {"coordinator", "worker", "user", "admin"};
constexpr absl::Duration kAuthorityValidity = absl::Hours(24 * 3650);
constexpr absl::Duration kClockSkew = absl::Minutes(5);  // between who issues and who checks
constexpr std::size_t kMaxName = 63;

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

absl::Status SslError(const std::string& what) {
  char text[256] = "unknown reason";
  if (const unsigned long code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text, sizeof(text));
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

// Of names, domains and hosts: they become part of a URI and of OpenSSL's extension syntax.
bool IsPlain(const std::string& text, const char* more) {
  return !text.empty() && text.size() <= kMaxName &&
         std::ranges::all_of(text, [more](unsigned char c) {
           return absl::ascii_isalnum(c) || std::strchr(more, c) != nullptr;
         });
}

absl::Status CheckName(const std::string& field, const std::string& value) {
  if (IsPlain(value, "._-")) return absl::OkStatus();
  return InvalidField({.field = field,
                       .value = value,
                       .rule = "is 1 to 63 letters, digits, '.', '_' or '-'",
                       .fix = "choose another name"});
}

bool IsAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

absl::Status CheckIdentity(const Identity& identity) {
  if (std::ranges::find(kRoles, identity.role) == kRoles.end()) {
    return InvalidField({.field = "ROLE",
                         .value = identity.role,
                         .rule = "is not a role",
                         .fix = "use one of " + absl::StrJoin(kRoles, ", ")});
  }
  return CheckName("NAME", identity.name);
}

absl::StatusOr<std::string> SanOf(const IssueOptions& options, const std::string& uri) {
  std::string san = absl::StrCat("URI:", uri);
  for (const std::string& host : options.hosts) {
    if (IsAddress(host)) {
      absl::StrAppend(&san, ",IP:", host);
    } else if (IsPlain(host, ".-*")) {
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

absl::Status FileError(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == EEXIST) return absl::AlreadyExistsError(text);
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

// A new file, whole or not at all.
absl::Status WriteNew(const std::string& path, const std::string& text, mode_t mode) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return FileError(path, errno);
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (written) return absl::OkStatus();
  unlink(path.c_str());
  return FileError(path, error);
}

absl::StatusOr<std::string> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError(path, errno);
  return std::string{std::istreambuf_iterator<char>(file), {}};
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

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// Serial, names, validity and key; what follows are extensions and the signature.
absl::StatusOr<Certificate> NewCertificate(EVP_PKEY* key, const std::string& common_name,
                                           absl::Time now, absl::Duration validity) {
  Certificate certificate(X509_new());
  unsigned char serial[16];
  if (certificate == nullptr || RAND_bytes(serial, sizeof(serial)) != 1)
    return SslError("cannot make a certificate");
  serial[0] &= 0x7f;  // positive
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

struct Authority {
  Certificate certificate;
  Key key;
  std::string domain;
};

absl::StatusOr<Authority> LoadAuthority(const std::string& directory) {
  const absl::StatusOr<std::string> certificate_text = Read(directory + kCaCertificate);
  if (!certificate_text.ok()) {
    return absl::NotFoundError(absl::StrCat(certificate_text.status().message(),
                                            "; make an authority with `takt certs init`"));
  }
  ASSIGN_OR_RETURN(const std::string key_text, Read(directory + kCaKey));
  const Bio certificate_bio(BIO_new_mem_buf(certificate_text->data(), certificate_text->size()));
  const Bio key_bio(BIO_new_mem_buf(key_text.data(), key_text.size()));
  Authority authority;
  authority.certificate.reset(PEM_read_bio_X509(certificate_bio.get(), nullptr, nullptr, nullptr));
  authority.key.reset(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr));
  if (authority.certificate == nullptr) return SslError(directory + kCaCertificate);
  if (authority.key == nullptr) return SslError(directory + kCaKey);
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    return absl::DataLossError(
        absl::StrCat(directory, ": ca.key is not the key of ca.pem; restore both from one backup"));
  }
  GENERAL_NAMES* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(authority.certificate.get(), NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_STRING* uri = name->d.uniformResourceIdentifier;
    const std::string text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                           ASN1_STRING_length(uri));
    if (absl::StartsWith(text, kUriPrefix)) authority.domain = text.substr(sizeof(kUriPrefix) - 1);
  }
  GENERAL_NAMES_free(names);
  if (authority.domain.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, kCaCertificate, " names no trust domain; make it with `takt certs init`"));
  }
  return authority;
}

}  // namespace

absl::Status CreateAuthority(const std::string& directory, const std::string& domain,
                             absl::Time now) {
  RETURN_IF_ERROR(CheckName("--domain", domain));
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return FileError(directory, errno);
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return SslError("cannot make a key");
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
  RETURN_IF_ERROR(WriteNew(directory + kCaKey, key_text, 0600));
  const absl::Status written = WriteNew(directory + kCaCertificate, certificate_text, 0644);
  if (!written.ok()) unlink((directory + kCaKey).c_str());
  return written;
}

absl::StatusOr<IssuedFiles> IssueCertificate(const std::string& directory, const std::string& out,
                                             const IssueOptions& options) {
  RETURN_IF_ERROR(CheckIdentity(options.identity));
  ASSIGN_OR_RETURN(const Authority authority, LoadAuthority(directory));
  IssuedFiles files{.certificate = absl::StrCat(out, "/", options.identity.name, ".pem"),
                    .key = absl::StrCat(out, "/", options.identity.name, ".key"),
                    .uri = absl::StrCat(kUriPrefix, authority.domain, "/takt/",
                                        options.identity.role, "/", options.identity.name),
                    .expires = options.now + options.validity};
  ASSIGN_OR_RETURN(const std::string san, SanOf(options, files.uri));
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return SslError("cannot make a key");
  ASSIGN_OR_RETURN(const Certificate certificate,
                   NewCertificate(key.get(), options.identity.name, options.now, options.validity));
  X509* leaf = certificate.get();
  X509* ca = authority.certificate.get();
  const bool serves = options.identity.role == kRoles[0];
  if (!AddExtension(leaf, ca, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(leaf, ca, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(leaf, ca, NID_ext_key_usage, serves ? "serverAuth,clientAuth" : "clientAuth") ||
      !AddExtension(leaf, ca, NID_subject_alt_name, san)) {
    return SslError("cannot make the certificate");
  }
  RETURN_IF_ERROR(Sign(leaf, ca, authority.key.get()));
  ASSIGN_OR_RETURN(const std::string key_text, PemOf(key.get()));
  ASSIGN_OR_RETURN(const std::string certificate_text, PemOf(leaf));
  if (mkdir(out.c_str(), 0700) != 0 && errno != EEXIST) return FileError(out, errno);
  RETURN_IF_ERROR(WriteNew(files.key, key_text, 0600));
  const absl::Status written = WriteNew(files.certificate, certificate_text, 0644);
  if (!written.ok()) {
    unlink(files.key.c_str());
    return written;
  }
  return files;
}

}  // namespace takt::cli
