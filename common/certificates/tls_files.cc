// SPDX-License-Identifier: Apache-2.0
#include "common/certificates/tls_files.h"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/certificates/openssl.h"

namespace takt::certificates {
namespace {

constexpr char kCertificateFlag[] = "--tls-certificate";
constexpr char kKeyFlag[] = "--tls-key";
constexpr char kAuthorityFlag[] = "--tls-authority";

using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
// A stack borrows its certificates.
using Stack = std::unique_ptr<STACK_OF(X509), Freed<[](STACK_OF(X509) * s) { sk_X509_free(s); }>>;

absl::StatusOr<std::string> Read(const char* flag, const std::string& path) {
  if (path.empty()) {
    return InvalidField(
        {.field = flag,
         .rule = "is not given, and certificate, key and authority are needed together",
         .fix = "give all three, e.g. those that `takt certs init` and `takt certs issue` make"});
  }
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) return text;
  return InvalidField({.field = flag,
                       .value = path,
                       .rule = absl::StrCat("cannot be read: ", text.status().message()),
                       .fix = "name a file that this user may read"});
}

absl::Status Wrong(const char* flag, const std::string& path, const absl::Status& status) {
  return InvalidField({.field = flag,
                       .value = path,
                       .rule = std::string(status.message()),
                       .fix = "name the file that `takt certs` made for it"});
}

absl::StatusOr<CertificateFacts> FactsOf(const std::string& path, const X509* certificate) {
  const std::vector<std::string> uris = UrisOf(certificate);
  if (uris.size() != 1) {
    return Wrong(kCertificateFlag, path,
                 absl::InvalidArgumentError(absl::StrCat(
                     "has ", uris.size(),
                     " URIs, not the one that says whose it is, spiffe://DOMAIN/takt/ROLE/NAME")));
  }
  absl::StatusOr<access::Identity> identity = access::ParseUri(uris[0]);
  if (!identity.ok()) return Wrong(kCertificateFlag, path, identity.status());
  return CertificateFacts{.identity = *std::move(identity),
                          .not_before = ToTime(X509_get0_notBefore(certificate)),
                          .not_after = ToTime(X509_get0_notAfter(certificate))};
}

std::string Text(absl::Time time) { return absl::FormatTime(time, absl::UTCTimeZone()); }

absl::Status CheckValidity(const std::string& path, const CertificateFacts& facts, absl::Time now) {
  if (now >= facts.not_before && now <= facts.not_after) return absl::OkStatus();
  const bool early = now < facts.not_before;
  return InvalidField(
      {.field = kCertificateFlag,
       .value = path,
       .rule = absl::StrCat(early ? "is not valid before " : "expired at ",
                            Text(early ? facts.not_before : facts.not_after),
                            ", and this machine's clock says ", Text(now)),
       .fix = "set the clock if it is wrong, else renew the certificate with `takt certs issue`"});
}

// Returns OpenSSL's reason why the chain does not end at the authority, or X509_V_OK if it does.
int ChainError(const std::vector<Certificate>& chain, const std::vector<Certificate>& authority,
               absl::Time now) {
  const Store store(X509_STORE_new());
  for (const Certificate& trusted : authority) X509_STORE_add_cert(store.get(), trusted.get());
  const Stack between(sk_X509_new_null());
  for (std::size_t i = 1; i < chain.size(); ++i) sk_X509_push(between.get(), chain[i].get());
  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between.get());
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  const bool good = X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  return good ? X509_V_OK : X509_STORE_CTX_get_error(context.get());
}

absl::Status CheckChain(const TlsFiles& files, const std::vector<Certificate>& chain,
                        const std::vector<Certificate>& authority, absl::Time now) {
  const int error = ChainError(chain, authority, now);
  if (error == X509_V_OK) return absl::OkStatus();
  std::string rule =
      absl::StrCat("did not sign ", files.certificate, ": ", X509_verify_cert_error_string(error));
  std::string fix = "name the ca.pem of the authority that issued the certificate";
  if (error == X509_V_ERR_CERT_NOT_YET_VALID || error == X509_V_ERR_CERT_HAS_EXPIRED) {
    absl::StrAppend(&rule, ", and this machine's clock says ", Text(now));
    fix = "set the clock if it is wrong, else make another authority";
  }
  return InvalidField({.field = kAuthorityFlag,
                       .value = files.authority,
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

absl::StatusOr<std::vector<Certificate>> ReadChain(const char* flag, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, Read(flag, path));
  absl::StatusOr<std::vector<Certificate>> chain = ReadCertificates(text, "the file");
  if (!chain.ok()) return Wrong(flag, path, chain.status());
  return chain;
}

}  // namespace

absl::Status CheckAuthority(const TlsFiles& files) {
  return ReadChain(kAuthorityFlag, files.authority).status();
}

absl::Status CheckKeyMode(const std::string& path) {
  struct stat file {};
  if (stat(path.c_str(), &file) != 0) {
    return InvalidField({.field = kKeyFlag,
                         .value = path,
                         .rule = std::strerror(errno),
                         .fix = "name a file that this user may read"});
  }
  const mode_t allowed = file.st_uid == 0 ? S_IRWXU | S_IRGRP : S_IRWXU;
  const mode_t mode = file.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
  if ((mode & ~allowed) == 0) return absl::OkStatus();
  return InvalidField(
      {.field = kKeyFlag,
       .value = path,
       .rule = absl::StrFormat("has mode %04o: others than its owner may use the key", mode),
       .fix = absl::StrCat("chmod 600 ", path,
                           " (or 640 where root owns it), and issue it anew if "
                           "it may have been read")});
}

absl::StatusOr<CertificateFacts> ReadFacts(const std::string& certificate_path) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                   ReadChain(kCertificateFlag, certificate_path));
  return FactsOf(certificate_path, chain.front().get());
}

absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                   ReadChain(kCertificateFlag, files.certificate));
  ASSIGN_OR_RETURN(const CertificateFacts facts, FactsOf(files.certificate, chain.front().get()));
  ASSIGN_OR_RETURN(const std::string key_text, Read(kKeyFlag, files.key));
  RETURN_IF_ERROR(CheckKeyMode(files.key));
  const absl::StatusOr<Key> key = ReadKey(key_text, "the file");
  if (!key.ok()) return Wrong(kKeyFlag, files.key, key.status());
  if (X509_check_private_key(chain.front().get(), key->get()) != 1) {
    ERR_clear_error();
    return Wrong(kKeyFlag, files.key,
                 absl::InvalidArgumentError("is not the key of " + files.certificate));
  }
  ASSIGN_OR_RETURN(const std::vector<Certificate> authority,
                   ReadChain(kAuthorityFlag, files.authority));

  RETURN_IF_ERROR(CheckValidity(files.certificate, facts, now));
  RETURN_IF_ERROR(CheckChain(files, chain, authority, now));
  return facts;
}

}  // namespace takt::certificates
