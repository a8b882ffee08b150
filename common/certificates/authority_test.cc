// SPDX-License-Identifier: Apache-2.0
#include "common/certificates/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/certificates/openssl.h"
#include "common/certificates/test_authority.h"

namespace takt::certificates {
namespace {

using access::Role;
using ::testing::HasSubstr;

X509* Load(const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return nullptr;
  X509* certificate = PEM_read_X509(file, nullptr, nullptr, nullptr);
  std::fclose(file);
  return certificate;
}

class CertificateAuthorityTest : public ::testing::Test {
 protected:
  absl::StatusOr<IssuedFiles> Issue(access::Role role, const std::string& name,
                                    std::vector<std::string> hosts = {}, bool renew = false) {
    return IssueCertificate(ca_, ca_,
                            {.identity = {.role = role, .name = name},
                             .hosts = std::move(hosts),
                             .validity = absl::Hours(24),
                             .now = absl::Now(),
                             .renew = renew});
  }

  // Verifies the chain of `certificate` at `time`. Returns 0, or OpenSSL's error.
  int Verify(const std::string& certificate, const std::string& ca, absl::Time time) {
    X509_STORE* store = X509_STORE_new();
    X509* root = Load(ca);
    X509* leaf = Load(certificate);
    X509_STORE_add_cert(store, root);
    X509_STORE_CTX* context = X509_STORE_CTX_new();
    X509_STORE_CTX_init(context, store, leaf, nullptr);
    X509_STORE_CTX_set_time(context, 0, absl::ToTimeT(time));
    X509_verify_cert(context);
    const int error = X509_STORE_CTX_get_error(context);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    X509_free(leaf);
    X509_free(root);
    return error;
  }

  static mode_t ModeOf(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 0777;
  }

  const TestAuthority directory_;
  const std::string ca_ = directory_.ca();
};

TEST_F(CertificateAuthorityTest, WhatItIssuesIsSignedByItAndExpires) {
  const auto files = Issue(Role::kWorker, "n2");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->uri, "spiffe://lab.example/takt/worker/n2");
  EXPECT_EQ(Verify(files->certificate, ca_ + "/ca.pem", absl::Now()), X509_V_OK);
  EXPECT_EQ(Verify(files->certificate, ca_ + "/ca.pem", absl::Now() + absl::Hours(25)),
            X509_V_ERR_CERT_HAS_EXPIRED);
  const std::string other = directory_.path() + "/other";
  ASSERT_TRUE(CreateAuthority(other, "lab.example", absl::Now()).ok());
  EXPECT_NE(Verify(files->certificate, other + "/ca.pem", absl::Now()), X509_V_OK);
}

TEST_F(CertificateAuthorityTest, ACoordinatorsCertificateNamesItsHosts) {
  const auto files = Issue(Role::kCoordinator, "n1", {"n1.lab.example", "10.77.0.1", "::1"});
  ASSERT_TRUE(files.ok()) << files.status();
  X509* certificate = Load(files->certificate);
  EXPECT_EQ(X509_check_host(certificate, "n1.lab.example", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_host(certificate, "n2.lab.example", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_ip_asc(certificate, "10.77.0.1", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(certificate, "::1", 0), 1);
  EXPECT_EQ(X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0), 1);
  X509_free(certificate);
}

TEST_F(CertificateAuthorityTest, OnlyACoordinatorMayServe) {
  const auto files = Issue(Role::kWorker, "n2");
  X509* certificate = Load(files->certificate);
  EXPECT_EQ(X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0), 0);
  EXPECT_EQ(X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0), 1);
  X509_free(certificate);
}

TEST_F(CertificateAuthorityTest, KeysAreTheirOwnersAlone) {
  const auto files = Issue(Role::kAdmin, "alice");
  EXPECT_EQ(ModeOf(files->key), 0600);
  EXPECT_EQ(ModeOf(ca_ + "/ca.key"), 0600);
}

TEST_F(CertificateAuthorityTest, NothingIsOverwritten) {
  EXPECT_EQ(CreateAuthority(ca_, "lab.example", absl::Now()).code(),
            absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Issue(Role::kUser, "bob").ok());
  EXPECT_EQ(Issue(Role::kUser, "bob").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CertificateAuthorityTest, ARenewedCertificateKeepsItsKey) {
  EXPECT_EQ(Issue(Role::kUser, "bob", {}, /*renew=*/true).status().code(),
            absl::StatusCode::kNotFound);
  const auto first = Issue(Role::kUser, "bob");
  const std::string old_key = ReadFile(first->key).value();
  const std::string old_certificate = ReadFile(first->certificate).value();
  const auto renewed = Issue(Role::kUser, "bob", {}, /*renew=*/true);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(ReadFile(renewed->key).value(), old_key);
  EXPECT_NE(ReadFile(renewed->certificate).value(), old_certificate);
  EXPECT_TRUE(
      CheckTlsFiles({renewed->certificate, renewed->key, ca_ + "/ca.pem"}, absl::Now()).ok());
}

TEST_F(CertificateAuthorityTest, ARequestIsCertifiedForItsKeyAndTheNameThatWasGranted) {
  const auto request = MakeRequest();
  ASSERT_TRUE(request.ok()) << request.status();
  const IssueOptions options = {.identity = {.role = Role::kWorker, .name = "n9"},
                                .validity = absl::Hours(1),
                                .now = absl::Now()};
  const auto certificate = CertifyRequest(ca_, request->text, options);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  const auto files = WriteIssued(directory_.path() + "/n9", request->key, *certificate);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->uri, "spiffe://lab.example/takt/worker/n9");
  EXPECT_EQ(ModeOf(files->key), 0600);
  EXPECT_TRUE(CheckTlsFiles({files->certificate, files->key, ca_ + "/ca.pem"}, absl::Now()).ok());

  std::string forged = request->text;
  forged[forged.size() / 2] = forged[forged.size() / 2] == 'A' ? 'B' : 'A';
  for (const std::string& wrong : {std::string(), std::string("nonsense"), forged}) {
    EXPECT_EQ(CertifyRequest(ca_, wrong, options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(CertificateAuthorityTest, WhatCouldSayMoreThanAnIdentityIsRefused) {
  for (const char* name : {"", "a/b", "a,DNS:b", "a b", "\xc3\xa4", "../ca"})
    EXPECT_EQ(Issue(Role::kWorker, name).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
  EXPECT_THAT(Issue(Role::kCoordinator, "n1", {"a,URI:b"}).status().message(), HasSubstr("--host"));
  EXPECT_EQ(CreateAuthority(directory_.path() + "/x", "a/b", absl::Now()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CertificateAuthorityTest, AMissingOrDamagedAuthorityIsNamed) {
  const auto nowhere = IssueCertificate(directory_.path() + "/none", directory_.path(),
                                        {.identity = {.role = Role::kUser, .name = "bob"},
                                         .validity = absl::Hours(1),
                                         .now = absl::Now()});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(nowhere.status().message(), HasSubstr("takt certs init"));
  std::ofstream(ca_ + "/ca.key") << "garbage";
  EXPECT_THAT(Issue(Role::kUser, "bob").status().message(), HasSubstr("ca.key"));
}

}  // namespace
}  // namespace takt::certificates
