// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/certificate_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/certificates/test_authority.h"

namespace takt::daemon {
namespace {

using access::Role;
using ::testing::HasSubstr;

class CertificateJudgeTest : public ::testing::Test {
 protected:
  const certificates::TestAuthority authority_;
  const absl::Time start_ = absl::Now();
  const certificates::TlsFiles files_ =
      authority_.Issue(Role::kWorker, "n1", {.from = start_, .length = absl::Hours(10)});
  CertificateJudge judge_{files_};
};

TEST_F(CertificateJudgeTest, AGoodOneIsNoNews) {
  EXPECT_FALSE(judge_.Look(start_));
  EXPECT_FALSE(judge_.Look(start_ + absl::Hours(8)));
  ASSERT_TRUE(judge_.expires());
  EXPECT_LT(absl::AbsDuration(*judge_.expires() - start_ - absl::Hours(10)), absl::Seconds(2));
}

TEST_F(CertificateJudgeTest, OneThatEndsSoonIsSaidOnceAnHour) {
  const absl::Time late = start_ + absl::Minutes(560);
  const auto news = judge_.Look(late);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->level, LogLevel::kWarning);
  EXPECT_FALSE(judge_.Look(late + absl::Minutes(1)));
}

TEST_F(CertificateJudgeTest, AnExpiredOneIsSaidOnceAMinuteAndStillTellsItsEnd) {
  const absl::Time late = start_ + absl::Hours(11);
  const auto news = judge_.Look(late);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->level, LogLevel::kError);
  EXPECT_THAT(news->error, HasSubstr("expired"));
  EXPECT_LT(*judge_.expires(), late);
  EXPECT_FALSE(judge_.Look(late + absl::Seconds(30)));
  EXPECT_TRUE(judge_.Look(late + absl::Seconds(61)));
}

TEST_F(CertificateJudgeTest, ARenewedOneIsSaidOnce) {
  EXPECT_FALSE(judge_.Look(start_));
  authority_.Issue(Role::kWorker, "n1", {.from = start_, .length = absl::Hours(20), .renew = true});
  const auto news = judge_.Look(start_);
  ASSERT_TRUE(news);
  EXPECT_EQ(news->level, LogLevel::kInfo);
  EXPECT_THAT(news->message, HasSubstr("renewed"));
  EXPECT_FALSE(judge_.Look(start_));
}

TEST_F(CertificateJudgeTest, AKeyThatOthersCanReadMeanwhileIsSaid) {
  EXPECT_FALSE(judge_.Look(start_));
  chmod(files_.key.c_str(), 0644);
  EXPECT_THAT(judge_.Look(start_)->error, HasSubstr("0644"));
  chmod(files_.key.c_str(), 0600);
  EXPECT_EQ(judge_.Look(start_)->level, LogLevel::kInfo);
}

}  // namespace
}  // namespace takt::daemon
