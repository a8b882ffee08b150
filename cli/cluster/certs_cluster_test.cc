// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class CertsClusterTest : public testing::Test {
 protected:
  static std::string Text(const std::string& workers) {
    return absl::StrCat(
        "domain: lab.example\ncoordinator: {name: c1, hosts: [c1.lab.example, 10.0.0.100]}\n",
        "workers: [", workers, "]\nusers: [alice]\nadmins: [root]\ncheckpoint_root: /shared/c\n");
  }
  Outcome Issue(const std::string& text, std::vector<std::string> more = {}) {
    const std::string inventory = directory_.Write("inventory.yaml", text);
    more.insert(more.begin(), {"-o", "json", "certs", "cluster", inventory, Out("")});
    return RunTakt(more);
  }
  std::string Out(const std::string& name) const { return directory_.Path("out/" + name); }
  std::string Read(const std::string& name) const {
    std::ifstream in(Out(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const TestDirectory directory_;
};

TEST_F(CertsClusterTest, GivesSixteenWorkersAFolderEachInOneCall) {
  const Outcome outcome =
      Issue(Text("{name: \"n[01-16]\", data_address: \"10.0.0.[1-16]\"}, {name: big}"));
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["folders"].size(), 20u);
  for (const char* file :
       {"ca/ca.key", "c1/tls/c1.key", "c1/tls/ca.pem", "n01/tls/n01.pem", "n16/tls/n16.key",
        "big/tls/big.pem", "alice/tls/alice.key", "root/tls/root.pem", "alice/tls/ca.pem"}) {
    EXPECT_TRUE(fs::exists(Out(file))) << file;
  }
  EXPECT_EQ(fs::status(Out("n16/tls/n16.key")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(Read("n16/tls/ca.pem"), Read("ca/ca.pem"));
  EXPECT_FALSE(fs::exists(Out("n16/tls/ca.key")));
  EXPECT_THAT(Read("n16/worker.yaml"),
              AllOf(HasSubstr("\nname: n16\n"), HasSubstr("\ncoordinator: c1.lab.example:7070\n"),
                    HasSubstr("\ntls_key: /etc/takt/tls/n16.key\n"),
                    HasSubstr("\ndata_address: 10.0.0.16\n"),
                    HasSubstr("\ndata_root: /var/lib/takt/data\n"),
                    HasSubstr("\ncheckpoint_root: /shared/c\n")));
  EXPECT_THAT(Read("big/worker.yaml"), HasSubstr("\ndata_address: big\n"));
  EXPECT_THAT(Read("c1/coordinator.yaml"),
              AllOf(HasSubstr("\nlisten: c1.lab.example:7070\n"),
                    HasSubstr("\ntls_certificate: /etc/takt/tls/c1.pem\n")));
}

TEST_F(CertsClusterTest, TheWorkersOfAHostWithARelayNameIt) {
  const Outcome outcome = Issue(
      "coordinator: {name: c1, hosts: [c1.lab.example]}\nrelays: [\"n[1-2]\"]\n"
      "workers: [{name: \"n1-[0-1]\"}, {name: n3-0}]\n");
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\"host\""));
  EXPECT_TRUE(fs::exists(Out("n2/tls/n2.key")));
  EXPECT_THAT(Read("n1/relay.yaml"), AllOf(HasSubstr("\ncoordinator: c1.lab.example:7070\n"),
                                           HasSubstr("\ntls_certificate: /etc/takt/tls/n1.pem\n")));
  EXPECT_THAT(Read("n1-1/worker-1.yaml"),
              AllOf(HasSubstr("\nrelay: unix:/run/takt-relay/relay.sock\n"),
                    HasSubstr("\nmetrics_listen: 127.0.0.1:9471\n"),
                    HasSubstr("\nhealth_socket: /run/takt-worker-1/health.sock\n"),
                    HasSubstr("\ndata_address: n1\n")));
  EXPECT_TRUE(fs::exists(Out("n1-0/worker-0.yaml")));
  EXPECT_THAT(Read("n3-0/worker.yaml"), HasSubstr("\n# relay: "));
}

TEST_F(CertsClusterTest, AnIPv6AddressHasBracketsBeforeThePort) {
  const Outcome outcome =
      Issue("coordinator: {name: c1, hosts: [\"fd00::1\"]}\nworkers: [{name: n1}]\n");
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(Read("n1/worker.yaml"), HasSubstr("\ncoordinator: \"[fd00::1]:7070\"\n"));
  EXPECT_THAT(Read("c1/coordinator.yaml"), HasSubstr("\nlisten: \"[fd00::1]:7070\"\n"));
}

TEST_F(CertsClusterTest, IssuesOnlyWhatIsNewTheNextTime) {
  ASSERT_EQ(Issue(Text("{name: n1}")).code, ExitCode::kDone);
  const std::string certificate = Read("n1/tls/n1.pem"), authority = Read("ca/ca.pem");
  std::ofstream(Out("n1/worker.yaml")) << "mine";
  const Outcome outcome = Issue(Text("{name: \"n[1-2]\"}"));
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  const json folders = json::parse(outcome.out)["folders"];
  EXPECT_EQ(folders[1]["issued"], false);
  EXPECT_EQ(folders[2]["name"], "n2");
  EXPECT_EQ(folders[2]["issued"], true);
  EXPECT_EQ(Read("n1/tls/n1.pem"), certificate);
  EXPECT_EQ(Read("n1/worker.yaml"), "mine");
  EXPECT_EQ(Read("n2/tls/ca.pem"), authority);
}

TEST_F(CertsClusterTest, RenewsCertificatesAndKeepsKeys) {
  ASSERT_EQ(Issue(Text("{name: n1}")).code, ExitCode::kDone);
  const std::string certificate = Read("n1/tls/n1.pem"), key = Read("n1/tls/n1.key");
  const Outcome outcome = Issue(Text("{name: n1}"), {"--renew"});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_NE(Read("n1/tls/n1.pem"), certificate);
  EXPECT_EQ(Read("n1/tls/n1.key"), key);
}

TEST_F(CertsClusterTest, WhatIsThereAlreadyIsNamed) {
  const std::string ca = directory_.Path("ca");
  ASSERT_EQ(RunTakt({"certs", "init", ca}).code, ExitCode::kDone);
  const Outcome again = RunTakt({"certs", "init", ca});
  EXPECT_EQ(again.code, ExitCode::kInvalidInput);
  EXPECT_THAT(again.err, HasSubstr("DIR is " + ca + ": has an authority already"));
  ASSERT_EQ(RunTakt({"certs", "issue", ca, "user", "bob"}).code, ExitCode::kDone);
  const Outcome twice = RunTakt({"certs", "issue", ca, "user", "bob"});
  EXPECT_EQ(twice.code, ExitCode::kInvalidInput);
  EXPECT_THAT(twice.err, AllOf(HasSubstr("NAME is bob: has files already"),
                               HasSubstr("bob.key: File exists"), HasSubstr("--renew")));
}

TEST_F(CertsClusterTest, RefusesAWrongInventoryBeforeItWritesAnything) {
  const Outcome outcome = Issue(
      "coordinator: {name: c1}\nworkers:\n  - {name: \"n[3-1]\"}\n"
      "  - {name: \"m[1-2]\", data_address: 10.0.0.1}\n  - {name: c1}\nusers: [ca]\ndays: 0\n"
      "data_root: data\n");
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  for (const char* part :
       {"coordinator.hosts", "workers[0].name", "must be one, or a range of at most 4096",
        "workers[1].data_address", "must be 2 addresses", "workers[2].name",
        "is the name of another folder", "users[0]", "days", "data_root", "inventory.yaml:3:"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  EXPECT_FALSE(fs::exists(Out("")));
  EXPECT_THAT(Issue("coordinator: {name: c1, hosts: [c1, a/b]}").err,
              HasSubstr("coordinator.hosts[1]"));
  EXPECT_THAT(Issue("machines: [a]").err, HasSubstr("is not a known field"));
}

}  // namespace
}  // namespace takt::cli
