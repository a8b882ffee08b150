// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/access/decide.h"
#include "common/access/identity.h"
#include "common/access/method_table.h"
#include "common/access/rate_limiter.h"
#include "common/base/status.h"

namespace takt::access {
namespace {

using ::testing::HasSubstr;

const Identity kAlice{.role = Role::kUser, .name = "alice", .domain = "lab"};
const Identity kRoot{.role = Role::kAdmin, .name = "root", .domain = "lab"};
const Identity kN1{.role = Role::kWorker, .name = "n1", .domain = "lab"};
const Identity kLocal{.role = Role::kTrusted};

TEST(Identity, IsReadFromItsUriAndWrittenBack) {
  const auto identity = ParseUri("spiffe://lab.example/takt/worker/n-1.a");
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->role, Role::kWorker);
  EXPECT_EQ(identity->name, "n-1.a");
  EXPECT_EQ(identity->domain, "lab.example");
  EXPECT_EQ(identity->ToString(), "worker/n-1.a");
  EXPECT_EQ(identity->Uri(), "spiffe://lab.example/takt/worker/n-1.a");
}

TEST(Identity, IsNotReadFromAnythingElse) {
  for (const char* uri :
       {"", "spiffe://lab", "https://lab/takt/user/a", "spiffe://lab/takt/user/",
        "spiffe://lab/takt/user/a/b", "spiffe://lab/other/user/a", "spiffe:///takt/user/a",
        "spiffe://lab/takt/root/a", "spiffe://lab/takt/trusted/a", "spiffe://lab/takt/nobody/a",
        "spiffe://lab/takt/user/..", "spiffe://lab/takt/user/a b", "spiffe://lab/takt/user/a%2f",
        "spiffe://lab/takt/USER/a"}) {
    EXPECT_FALSE(ParseUri(uri).ok()) << uri;
  }
}

TEST(MethodTable, NamesEveryMethodOnce) {
  std::set<absl::string_view> seen;
  for (const MethodRule& rule : MethodTable())
    EXPECT_TRUE(seen.insert(rule.method).second) << rule.method;
}

TEST(MethodTable, LetsThoseWithoutACertificateAskForOneAndNothingElse) {
  for (const MethodRule& rule : MethodTable())
    EXPECT_EQ(rule.who.Has(Role::kNobody), rule.method == "/takt.v1.JoinService/Join");
}

TEST(Decide, ARoleThatIsNotInTheRowIsRefusedAndToldWhoMay) {
  const absl::Status status = MayCall(kAlice, "/takt.v1.ClusterService/DrainWorker");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.ToString(), HasSubstr("user/alice"));
  ASSERT_EQ(FieldErrorsOf(status).size(), 1u);
  EXPECT_THAT(FieldErrorsOf(status)[0].fix, HasSubstr("role admin"));
  EXPECT_TRUE(MayCall(kRoot, "/takt.v1.ClusterService/DrainWorker").ok());
}

TEST(Decide, WorkersAndUsersDoNotDoEachOthersWork) {
  EXPECT_TRUE(MayCall(kN1, "/takt.v1.AttachmentService/Attach").ok());
  EXPECT_FALSE(MayCall(kN1, "/takt.v1.JobService/SubmitJob").ok());
  EXPECT_FALSE(MayCall(kN1, "/takt.v1.JobService/ListJobs").ok());
  EXPECT_FALSE(MayCall(kAlice, "/takt.v1.AttachmentService/Attach").ok());
  EXPECT_FALSE(MayCall(kRoot, "/takt.v1.AttachmentService/Attach").ok());
  EXPECT_FALSE(MayCall(kRoot, "/takt.v1.RendezvousService/WaitKeys").ok());
}

TEST(Decide, NobodyIsUnauthenticated) {
  EXPECT_EQ(MayCall({}, "/takt.v1.ClusterService/GetVersion").code(),
            absl::StatusCode::kUnauthenticated);
}

TEST(Decide, AMethodWithoutARowIsRefused) {
  EXPECT_FALSE(MayCall(kRoot, "/takt.v1.JobService/Nothing").ok());
  EXPECT_FALSE(MayCall(kRoot, "").ok());
}

TEST(Decide, TheTrustedMayDoEverything) {
  EXPECT_TRUE(MayCall(kLocal, "/takt.v1.AttachmentService/Attach").ok());
  EXPECT_TRUE(MayUseJob(kLocal, "j", "user/bob").ok());
  EXPECT_TRUE(MaySpeakFor(kLocal, "n1").ok());
  EXPECT_TRUE(MayMeet(kLocal, "j", false).ok());
}

TEST(Decide, UsersUseTheirOwnJobsAndAdminsAll) {
  EXPECT_TRUE(MayUseJob(kAlice, "j", "user/alice").ok());
  EXPECT_FALSE(MayUseJob(kAlice, "j", "user/bob").ok());
  EXPECT_FALSE(MayUseJob(kAlice, "j", "admin/alice").ok());
  EXPECT_FALSE(MayUseJob(kAlice, "j", "").ok());
  EXPECT_FALSE(MayUseJob(kN1, "j", "worker/n1").ok());
  EXPECT_TRUE(MayUseJob(kRoot, "j", "user/alice").ok());
}

TEST(Decide, AWorkerSpeaksForItselfAlone) {
  EXPECT_TRUE(MaySpeakFor(kN1, "n1").ok());
  EXPECT_THAT(MaySpeakFor(kN1, "n2").ToString(), HasSubstr("worker n2"));
  EXPECT_FALSE(MaySpeakFor({.role = Role::kUser, .name = "n1"}, "n1").ok());
}

TEST(Identity, AWorkersNameSaysOfWhichHostItIs) {
  EXPECT_EQ(HostOf("n1-0"), "n1");
  EXPECT_EQ(HostOf("rack-2-17"), "rack-2");
  for (const char* worker : {"n1", "n1-", "n1-a", "n1-0a", "7", ""})
    EXPECT_EQ(HostOf(worker), "") << worker;
}

TEST(Decide, AHostSpeaksForItsOwnWorkersAlone) {
  const Identity host{.role = Role::kHost, .name = "n1", .domain = "lab"};
  EXPECT_TRUE(MaySpeakFor(host, "n1-0").ok());
  EXPECT_TRUE(MaySpeakFor(host, "n1-12").ok());
  for (const char* worker : {"n1", "n2-0", "n1-0-0", "n11-0", "n1-x", "1-0", "-0"}) {
    const absl::Status status = MaySpeakFor(host, worker);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << worker;
    EXPECT_THAT(status.ToString(), HasSubstr("n1-0")) << worker;
  }
  EXPECT_FALSE(MaySpeakFor({.role = Role::kHost}, "-0").ok());
  EXPECT_FALSE(MayCall(host, "/takt.v1.AttachmentService/Attach").ok());
  EXPECT_TRUE(MayCall(host, "/takt.v1.AttachmentService/AttachHost").ok());
  EXPECT_FALSE(MayCall(kN1, "/takt.v1.AttachmentService/AttachHost").ok());
}

TEST(Decide, AWorkerMeetsThoseOfItsJobsAlone) {
  EXPECT_TRUE(MayMeet({.role = Role::kHost, .name = "n1"}, "j", true).ok());
  EXPECT_FALSE(MayMeet({.role = Role::kHost, .name = "n1"}, "j", false).ok());
  EXPECT_TRUE(MayMeet(kN1, "j", true).ok());
  EXPECT_FALSE(MayMeet(kN1, "j", false).ok());
  EXPECT_FALSE(MayMeet({.role = Role::kUser, .name = "n1"}, "j", true).ok());
}

TEST(RateLimiter, AllowsABurstThenAsManyASecond) {
  RateLimiter limiter({.per_second = 10, .burst = 3});
  const absl::Duration start = absl::Hours(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Allow("a", start));
  EXPECT_FALSE(limiter.Allow("a", start));
  EXPECT_TRUE(limiter.Allow("b", start));
  EXPECT_FALSE(limiter.Allow("a", start + absl::Milliseconds(99)));
  EXPECT_TRUE(limiter.Allow("a", start + absl::Milliseconds(101)));
  EXPECT_FALSE(limiter.Allow("a", start + absl::Milliseconds(101)));
}

TEST(RateLimiter, ForgetsThoseWhoHaveBeenQuiet) {
  RateLimiter limiter({.per_second = 10, .burst = 3});
  for (int i = 0; i < 100; ++i) limiter.Allow(std::to_string(i), absl::ZeroDuration());
  EXPECT_EQ(limiter.size(), 100u);
  limiter.Allow("a", absl::Minutes(2));
  EXPECT_EQ(limiter.size(), 1u);
}

}  // namespace
}  // namespace takt::access
