// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/quotas.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::placement {
namespace {

using ::testing::HasSubstr;

TEST(Quotas, NobodyIsLimitedWithoutOne) { EXPECT_EQ(Quotas().Of("user/ada"), std::nullopt); }

TEST(Quotas, TheStarStandsForThoseThatAreNotNamed) {
  const Quotas quotas = *Quotas::Parse({"user/ada=8", "admin/eve=0", "*=16"});
  EXPECT_EQ(quotas.Of("user/ada"), 8);
  EXPECT_EQ(quotas.Of("admin/eve"), 0);
  EXPECT_EQ(quotas.Of("user/bob"), 16);
  EXPECT_EQ(quotas.Of(""), 16);
  EXPECT_EQ(Quotas::Parse({"user/ada=8"})->Of("user/bob"), std::nullopt);
}

TEST(Quotas, WhatIsNoQuotaIsRefused) {
  for (const char* text :
       {"", "=", "8", "user/ada", "user/ada=", "user/ada=x", "user/ada=-1", "user/ada=1=2",
        "user/ada=99999999999", "ada=8", "worker/w0=8", "user/=8", "user/a/b=8", "=8"}) {
    const auto status = Quotas::Parse({text}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.ToString(), HasSubstr("must be IDENTITY=WORKERS")) << text;
  }
  EXPECT_THAT(Quotas::Parse({"*=1", "*=2"}).status().ToString(),
              HasSubstr("--quota is *=2: names * again; keep one of them"));
}

}  // namespace
}  // namespace takt::placement
