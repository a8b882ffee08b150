// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/election.h"

#include <thread>

#include "common/certificates/test_authority.h"
#include "coordinator/etcd/fake_leader.h"
#include "coordinator/etcd/keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::etcd {
namespace {

using ::testing::HasSubstr;

std::string KeyOf(const char* name) { return std::string("t/") + name; }

TEST(Election, OneLeadsAndTheOtherSeesItsAddress) {
  const FakeEtcd etcd;
  FakeCandidate first(etcd), second(etcd);
  EXPECT_TRUE(first.Lead("a:1"));
  EXPECT_FALSE(second.Lead("b:2"));
  EXPECT_EQ(second.leader, "a:1");
  EXPECT_TRUE(first.leadership->Holds());
}

TEST(Election, TheNextLeaderHasAHigherEpochAndAnotherRevisionAndTheSameCluster) {
  FakeEtcd etcd;
  FakeCandidate first(etcd), second(etcd);
  ASSERT_TRUE(first.Lead());
  EXPECT_EQ(first.leadership->epoch(), 1);
  EXPECT_EQ(etcd.Get(KeyOf(kEpochKey)), "1");
  const std::string cluster = etcd.Get(KeyOf(kClusterKey));
  EXPECT_EQ(cluster.size(), 32u);
  etcd.ExpireLeases();
  ASSERT_TRUE(second.Lead());
  EXPECT_EQ(second.leadership->epoch(), 2);
  EXPECT_EQ(etcd.Get(KeyOf(kEpochKey)), "2");
  EXPECT_GT(second.leadership->revision(), first.leadership->revision());
  EXPECT_EQ(etcd.Get(KeyOf(kClusterKey)), cluster);
}

TEST(Election, ALeaderThatEndsGivesItsPlaceUpAtOnce) {
  const FakeEtcd etcd;
  FakeCandidate first(etcd), second(etcd);
  ASSERT_TRUE(first.Lead());
  first.leadership.reset();
  EXPECT_TRUE(second.Lead());
}

TEST(Election, AnExpiredLeaseIsNoticedAndNeverHoldsAgain) {
  FakeEtcd etcd;
  FakeCandidate candidate(etcd);
  ASSERT_TRUE(candidate.Lead("a:1", absl::Seconds(1)));
  EXPECT_TRUE(candidate.leadership->Check().ok() || !candidate.leadership->Holds());
  etcd.ExpireLeases();
  while (candidate.leadership->Check().ok()) std::this_thread::yield();
  EXPECT_FALSE(candidate.leadership->Holds());
  EXPECT_EQ(candidate.leadership->Left(), absl::ZeroDuration());
  EXPECT_THAT(std::string(candidate.leadership->Check().message()), HasSubstr("leads no more"));
}

TEST(Election, ALostAnswerLeavesNoLeader) {
  FakeEtcd etcd;
  FakeCandidate first(etcd), second(etcd);
  etcd.LoseAnswers(1);
  EXPECT_FALSE(TryToLead(first.reader, {.address = "a:1"}).ok());
  EXPECT_TRUE(second.Lead()) << "the lease was given up, and the key with it";
  EXPECT_EQ(second.leadership->epoch(), 2);
}

TEST(Election, TheStateOfANewerProgramIsRefused) {
  FakeEtcd etcd;
  etcd.Put(KeyOf(kSchemaKey), "2");
  FakeCandidate candidate(etcd);
  const auto standing = TryToLead(candidate.reader, {.address = "a:1"});
  EXPECT_EQ(standing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(standing.status().message()), HasSubstr("schema 2"));
}

TEST(EtcdClient, NamesTheMemberThatDoesNotAnswer) {
  std::string address;
  {
    const FakeEtcd gone;
    address = gone.address();
  }
  const auto client =
      EtcdClient::Create(
          {.endpoints = {address}, .insecure = true, .call_timeout = absl::Seconds(1)})
          .value();
  const absl::Status status = client->Range({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

TEST(EtcdClient, GoesToTheNextMember) {
  std::string gone_address;
  {
    const FakeEtcd gone;
    gone_address = gone.address();
  }
  const FakeEtcd etcd;
  const auto client = EtcdClient::Create({.endpoints = {gone_address, etcd.address()},
                                          .insecure = true,
                                          .call_timeout = absl::Seconds(5)})
                          .value();
  EXPECT_TRUE(client->Range({}).ok());
}

TEST(EtcdClient, MembersOfTwoClustersAreRefused) {
  FakeEtcd one(1);
  const FakeEtcd two(2);
  const auto client =
      EtcdClient::Create({.endpoints = {one.address(), two.address()}, .insecure = true}).value();
  ASSERT_TRUE(client->Range({}).ok());
  one.RefuseTransactions(1);
  EXPECT_FALSE(client->Txn({}).ok());
  const absl::Status status = client->Range({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is a member of cluster 2"));
}

TEST(EtcdClient, EndpointsAndCertificatesMustBeGiven) {
  const auto refusal = [](const EtcdOptions& options) {
    return std::string(EtcdClient::Create(options).status().message());
  };
  EXPECT_THAT(refusal({.insecure = true}), HasSubstr("--etcd-endpoints"));
  EXPECT_THAT(refusal({.endpoints = {"unix:/run/x"}, .insecure = true}), HasSubstr("HOST:PORT"));
  EXPECT_THAT(refusal({.endpoints = {"nowhere"}, .insecure = true}), HasSubstr("nowhere"));
  EXPECT_THAT(refusal({.endpoints = {"a:1"}}), HasSubstr("--etcd-certificate"));
  const certificates::TestAuthority authority;
  certificates::TlsFiles files = authority.Issue(access::Role::kCoordinator, "c");
  EXPECT_TRUE(EtcdClient::Create({.endpoints = {"a:1"}, .tls = files}).ok());
  files.authority = "/nonexistent";
  EXPECT_THAT(refusal({.endpoints = {"a:1"}, .tls = files}), HasSubstr("--etcd-authority"));
}

}  // namespace
}  // namespace takt::etcd
