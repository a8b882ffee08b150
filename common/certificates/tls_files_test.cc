// SPDX-License-Identifier: Apache-2.0
#include "common/certificates/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/certificates/test_authority.h"

namespace takt::certificates {
namespace {

using access::Role;
using ::testing::HasSubstr;

constexpr absl::Duration kYear = absl::Hours(24 * 365);

class TlsFilesTest : public ::testing::Test {
 protected:
  FieldError ErrorOf(const TlsFiles& files, absl::Time now = absl::Now()) {
    const absl::Status status = CheckTlsFiles(files, now).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const std::vector<FieldError> errors = FieldErrorsOf(status);
    return errors.empty() ? FieldError{} : errors.front();
  }

  const TestAuthority authority_;
  TlsFiles files_ = authority_.Issue(Role::kWorker, "n1");
};

TEST_F(TlsFilesTest, GoodOnesSayWhoseTheyAreAndHowLong) {
  const auto facts = CheckTlsFiles(files_, absl::Now());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->identity.Uri(), "spiffe://lab.example/takt/worker/n1");
  EXPECT_GT(facts->not_after, absl::Now() + absl::Minutes(59));
  EXPECT_LT(facts->not_after, absl::Now() + absl::Minutes(61));
}

TEST_F(TlsFilesTest, AllThreeAreNeeded) {
  EXPECT_EQ(ErrorOf({.key = files_.key, .authority = files_.authority}).field, "--tls-certificate");
  EXPECT_EQ(ErrorOf({.certificate = files_.certificate, .authority = files_.authority}).field,
            "--tls-key");
  EXPECT_EQ(ErrorOf({.certificate = files_.certificate, .key = files_.key}).field,
            "--tls-authority");
}

TEST_F(TlsFilesTest, AFileThatIsMissingOrIsSomethingElseIsNamed) {
  files_.certificate = authority_.path() + "/none.pem";
  EXPECT_THAT(ErrorOf(files_).rule, HasSubstr("No such file"));
  files_.certificate = files_.key;
  EXPECT_THAT(ErrorOf(files_).rule, HasSubstr("no certificate in PEM"));
  files_ = authority_.Issue(Role::kWorker, "n2");
  std::swap(files_.key, files_.authority);
  chmod(files_.key.c_str(), 0600);
  EXPECT_THAT(ErrorOf(files_).rule, HasSubstr("no private key in PEM"));
}

TEST_F(TlsFilesTest, AKeyThatOthersMayReadIsRefusedWithTheFix) {
  for (const mode_t mode : {0604U, 0644U, 0666U, 0620U, 0601U}) {
    ASSERT_EQ(chmod(files_.key.c_str(), mode), 0);
    const FieldError error = ErrorOf(files_);
    EXPECT_EQ(error.field, "--tls-key");
    EXPECT_THAT(error.fix, HasSubstr("chmod 600 " + files_.key));
  }
  // A group may read what root owns, as packages and Kubernetes hand keys over.
  ASSERT_EQ(chmod(files_.key.c_str(), 0640), 0);
  EXPECT_EQ(CheckKeyMode(files_.key).ok(), geteuid() == 0);
  ASSERT_EQ(chmod(files_.key.c_str(), 0400), 0);
  EXPECT_TRUE(CheckTlsFiles(files_, absl::Now()).ok());
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificateIsRefused) {
  files_.key = authority_.Issue(Role::kWorker, "n2").key;
  EXPECT_THAT(ErrorOf(files_).rule, HasSubstr("is not the key of"));
}

TEST_F(TlsFilesTest, ACertificateOfAnotherAuthorityIsRefused) {
  const TestAuthority other;
  files_.authority = other.authority();
  EXPECT_EQ(ErrorOf(files_).field, "--tls-authority");
}

TEST_F(TlsFilesTest, AClockThatIsAYearOffIsSaid) {
  const FieldError late = ErrorOf(files_, absl::Now() + kYear);
  EXPECT_THAT(late.rule, HasSubstr("expired at"));
  EXPECT_THAT(late.rule, HasSubstr("this machine's clock says"));
  EXPECT_THAT(late.fix, HasSubstr("set the clock"));
  EXPECT_THAT(ErrorOf(files_, absl::Now() - kYear).rule, HasSubstr("is not valid before"));
}

TEST_F(TlsFilesTest, AnAuthorityThatIsNotValidByThisClockIsNotCalledAnothers) {
  const absl::Time before = absl::Now() - kYear;
  const FieldError error =
      ErrorOf(authority_.Issue(Role::kWorker, "early", {.from = before}), before);
  EXPECT_EQ(error.field, "--tls-authority");
  EXPECT_THAT(error.rule, HasSubstr("this machine's clock says"));
  EXPECT_THAT(error.fix, HasSubstr("set the clock"));
}

TEST_F(TlsFilesTest, ACertificateWithoutAnIdentityIsRefused) {
  files_.certificate = authority_.authority();  // its URI names the domain alone
  EXPECT_THAT(ErrorOf(files_).rule, HasSubstr("spiffe://DOMAIN/takt/ROLE/NAME"));
}

}  // namespace
}  // namespace takt::certificates
