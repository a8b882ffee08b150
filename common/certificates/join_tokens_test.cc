// SPDX-License-Identifier: Apache-2.0
#include "common/certificates/join_tokens.h"

#include <gtest/gtest.h>

namespace takt::certificates {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

TEST(JoinTokens, OneIsGoodOnceForItsWorker) {
  JoinTokens tokens;
  const std::string token = tokens.Create("n1", absl::Hours(1), kNow).value();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(tokens.Find(token, kNow).value(), "n1");
  EXPECT_EQ(tokens.Redeem(token, kNow + absl::Minutes(59)).value(), "n1");
  EXPECT_EQ(tokens.Find(token, kNow).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(tokens.Redeem(token, kNow).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(JoinTokens, OneExpires) {
  JoinTokens tokens;
  const std::string token = tokens.Create("n1", absl::Hours(1), kNow).value();
  EXPECT_FALSE(tokens.Find(token, kNow + absl::Minutes(61)).ok());
  EXPECT_FALSE(tokens.Redeem(token, kNow + absl::Minutes(61)).ok());
}

TEST(JoinTokens, NobodyGuessesOne) {
  JoinTokens tokens;
  EXPECT_FALSE(tokens.Redeem("", kNow).ok());
  EXPECT_NE(tokens.Create("n1", absl::Hours(1), kNow).value(),
            tokens.Create("n1", absl::Hours(1), kNow).value());
}

TEST(JoinTokens, ThereAreNotAnyNumberOfThem) {
  JoinTokens tokens;
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(tokens.Create("n", absl::Hours(1), kNow).ok());
  EXPECT_EQ(tokens.Create("n", absl::Hours(1), kNow).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(tokens.Create("n", absl::Hours(1), kNow + absl::Hours(2)).ok());
}

}  // namespace
}  // namespace takt::certificates
