// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/guard.h"

#include "common/access/method_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::coordinator_rpc {
namespace {

using access::Identity;
using access::Role;
using ::testing::HasSubstr;

constexpr char kSubmit[] = "/takt.v1.JobService/SubmitJob", kGet[] = "/takt.v1.JobService/GetJob";

const Identity kAda{.role = Role::kUser, .name = "ada", .domain = "lab"};
const Identity kWorker{.role = Role::kWorker, .name = "w0", .domain = "lab"};

GuardOptions Following(const std::string& leader) {
  return {.domain = "lab", .leader = [leader] { return leader; }};
}

TEST(GuardOfAFollower, AnswersReadsAndNamesTheLeaderForTheRest) {
  Guard guard(Following("b:7070"));
  EXPECT_TRUE(guard.follows());
  EXPECT_TRUE(guard.Admit(kAda, kGet).ok());
  const absl::Status submit = guard.Admit(kAda, kSubmit);
  EXPECT_EQ(submit.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(submit.message()), HasSubstr("b:7070"));
  const absl::Status attach = guard.Admit(kWorker, "/takt.v1.AttachmentService/Attach");
  EXPECT_EQ(attach.code(), absl::StatusCode::kUnavailable);
}

TEST(GuardOfAFollower, SaysThatNobodyLeads) {
  Guard guard(Following(""));
  EXPECT_THAT(std::string(guard.Admit(kAda, kSubmit).message()), HasSubstr("none leads"));
}

TEST(GuardOfAFollower, ChecksRightsFirst) {
  Guard guard(Following("b:7070"));
  EXPECT_EQ(guard.Admit(kWorker, kSubmit).code(), absl::StatusCode::kPermissionDenied);
}

TEST(GuardOfAFollower, AnswersNothingThatChangesAnything) {
  Guard guard(Following("b:7070"));
  for (const access::MethodRule& rule : access::MethodTable()) {
    if (!rule.changes) continue;
    for (const Identity& who : {kAda, kWorker})
      EXPECT_FALSE(guard.Admit(who, rule.method).ok()) << rule.method;
  }
}

TEST(Guard, OfALeaderAnswersAll) {
  Guard guard({.domain = "lab"});
  EXPECT_FALSE(guard.follows());
  EXPECT_TRUE(guard.Admit(kAda, kSubmit).ok());
}

}  // namespace
}  // namespace takt::coordinator_rpc
