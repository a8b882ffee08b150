// SPDX-License-Identifier: Apache-2.0
// Two coordinators with their state in etcd. The one that leads is killed, again and again. A job
// keeps training, and nothing that was acknowledged is lost.
#include <signal.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/local/process.h"
#include "common/certificates/test_authority.h"
#include "common/net/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command.h"
#include "tests/testing/scrape.h"

namespace takt {
namespace {

using access::Role;
using certificates::TestAuthority;
using certificates::TlsFiles;
using certificates::WithTls;
using integration::Command;
using integration::TestDirectory;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr absl::Duration kMostWithoutSteps = absl::Seconds(30);
constexpr absl::Duration kFailoverLimit = absl::Seconds(15);
constexpr char kEtcd[] = "/usr/bin/etcd";
constexpr int kCoordinators = 2;
constexpr int kLeaseSeconds = 2;

std::string JobText(const std::string& name) {
  return absl::StrCat("name: ", name,
                      "\n"
                      "model: {family: emulated, layers: 2, forward_ms: 1, input_grad_ms: 1, "
                      "weight_grad_ms: 1, activation_bytes: 4096}\n"
                      "batch: {global: 4, microbatch: 1}\n"
                      "steps: 1000000\n"
                      "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n");
}

// A port that was free a moment ago. A process that is started again needs the same one.
std::string FreeAddress() {
  const net::Socket socket = *net::ListenOn("127.0.0.1:0");
  return net::ToString(*net::LocalAddress(socket));
}

class Failover : public ::testing::Test {
 protected:
  using Arguments = std::vector<std::string>;

  void SetUp() override {
    if (!std::filesystem::exists(kEtcd)) {
      GTEST_SKIP() << kEtcd << " is not there; deploy/install-deps.sh installs it";
    }
    StartEtcd();
    for (int i = 0; i < kCoordinators; ++i) {
      addresses_[i] = FreeAddress();
      StartCoordinator(i);
    }
    all_ = addresses_[0] + "," + addresses_[1];
    ASSERT_GE(AwaitLeader(), 0);
    for (const char* name : {"w0", "w1"}) {
      workers_.push_back(std::make_unique<Command>(
          "takt-worker",
          WithTls({"--settings", "", "--coordinator", all_, "--data-root", "/", "--checkpoint-root",
                   "/", "--threads", "1", "--metrics-listen", "", "--device", "cpu"},
                  authority_.Issue(Role::kWorker, name))));
    }
    for (const auto& worker : workers_)
      ASSERT_TRUE(worker->WaitForText("attached")) << worker->err();
  }
  void TearDown() override {
    workers_.clear();
    for (auto& coordinator : coordinators_) coordinator.reset();
    if (etcd_ != nullptr) cli::StopAll({etcd_.get()}, absl::ZeroDuration());
    if (HasFailure() && etcd_ != nullptr)
      std::cerr << "etcd:\n" << integration::ReadFile(directory_.Path("etcd.log")) << "\n";
  }

  void StartEtcd() {
    endpoint_ = FreeAddress();
    const std::string client = "https://" + endpoint_, peer = "http://" + FreeAddress();
    const TlsFiles files = etcd_authority_.Issue(Role::kCoordinator, "etcd");
    auto process = cli::Process::Spawn({.name = "etcd",
                                        .argv = {kEtcd,
                                                 "--name",
                                                 "e",
                                                 "--data-dir",
                                                 directory_.Path("etcd"),
                                                 "--listen-client-urls",
                                                 client,
                                                 "--advertise-client-urls",
                                                 client,
                                                 "--listen-peer-urls",
                                                 peer,
                                                 "--initial-advertise-peer-urls",
                                                 peer,
                                                 "--initial-cluster",
                                                 "e=" + peer,
                                                 "--cert-file",
                                                 files.certificate,
                                                 "--key-file",
                                                 files.key,
                                                 "--trusted-ca-file",
                                                 files.authority,
                                                 "--client-cert-auth",
                                                 "--unsafe-no-fsync"},
                                        .log_path = directory_.Path("etcd.log")});
    ASSERT_TRUE(process.ok()) << process.status();
    etcd_ = std::make_unique<cli::Process>(*std::move(process));
  }

  // Returns the arguments of a coordinator with this directory and address.
  Arguments CoordinatorArguments(const std::string& state, const std::string& listen) const {
    return WithTls({"--settings",
                    "",
                    "--state",
                    directory_.Path(state),
                    "--listen",
                    listen,
                    "--store",
                    "etcd",
                    "--etcd-endpoints",
                    endpoint_,
                    "--etcd-certificate",
                    etcd_files_.certificate,
                    "--etcd-key",
                    etcd_files_.key,
                    "--etcd-authority",
                    etcd_files_.authority,
                    "--etcd-lease",
                    absl::StrCat(kLeaseSeconds),
                    "--metrics-listen",
                    "127.0.0.1:0"},
                   coordinator_files_);
  }

  // It follows at first. It waits for etcd by itself.
  void StartCoordinator(int index) {
    coordinators_[index] = std::make_unique<Command>(
        "takt-coordinator", CoordinatorArguments(absl::StrCat("c", index), addresses_[index]));
  }

  // Returns the index of the coordinator that leads; -1: none does for a long time. One that has
  // ended is started again, as systemd does.
  int AwaitLeader() {
    const absl::Time end = absl::Now() + kPatience;
    while (absl::Now() < end) {
      for (int i = 0; i < kCoordinators; ++i) {
        if (coordinators_[i]->Wait(absl::ZeroDuration()) != "still running") StartCoordinator(i);
        if (absl::StrContains(coordinators_[i]->err(), "coordinator ready")) return i;
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    for (const auto& coordinator : coordinators_) ADD_FAILURE() << coordinator->err();
    return -1;
  }

  // Returns the value of a metric without labels of this coordinator; nullopt: it has none.
  std::optional<double> Metric(int index, const std::string& name) const {
    const std::string file = directory_.Path(absl::StrCat("c", index, "/coordinator.json"));
    const std::string address = json::parse(integration::ReadFile(file))["metrics"];
    const std::string page = testing::Scrape(address);
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      const std::pair<std::string, std::string> cells =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      double value = 0;
      if (cells.first == name && absl::SimpleAtod(cells.second, &value)) return value;
    }
    return std::nullopt;
  }

  struct Result {
    std::string end, out, err;
  };
  Result Takt(Arguments arguments, const std::string& coordinator) const {
    arguments.insert(arguments.end(), {"--coordinator", coordinator, "--timeout", "30"});
    Command command("takt", WithTls(std::move(arguments), alice_));
    std::string end = command.Wait();
    return {std::move(end), command.out(), command.err()};
  }
  void Submit(const std::string& name) const {
    const Result result = Takt({"submit", directory_.Write(name + ".yaml", JobText(name))}, all_);
    ASSERT_EQ(result.end, "exit status 0") << result.err;
  }
  // Returns the job once it has trained beyond `step`.
  json AwaitStep(const std::string& name, std::int64_t step) const {
    const absl::Time end = absl::Now() + kMostWithoutSteps;
    while (absl::Now() < end) {
      const Result shown = Takt({"job", name, "-o", "json"}, all_);
      if (shown.end != "exit status 0") continue;
      json job = json::parse(shown.out);
      if (job.contains("last_step") && job["last_step"]["step"] > step) return job;
    }
    ADD_FAILURE() << name << " makes no step after " << step;
    return {};
  }

  void KillTheLeader(int times) {
    Submit("a");
    json job = AwaitStep("a", 0);
    absl::Duration longest;
    for (int i = 0; i < times && !HasFatalFailure(); ++i) {
      const int leader = AwaitLeader();
      ASSERT_GE(leader, 0);
      Submit(absl::StrCat("before-", i));
      coordinators_[leader]->Signal(SIGKILL);
      const absl::Time killed = absl::Now();
      coordinators_[leader]->Wait();
      StartCoordinator(leader);
      Submit(absl::StrCat("after-", i));
      const absl::Duration took = absl::Now() - killed;
      longest = std::max(longest, took);
      EXPECT_LE(took, kFailoverLimit);
      const json later = AwaitStep("a", job["last_step"]["step"]);
      ASSERT_TRUE(later.contains("state"));
      EXPECT_EQ(later["state"], "RUNNING");
      EXPECT_EQ(later["generation"], job["generation"]) << "it was never interrupted";
      job = later;
    }
    const Result jobs = Takt({"jobs", "-o", "json"}, all_);
    ASSERT_EQ(jobs.end, "exit status 0") << jobs.err;
    for (int i = 0; i < times; ++i) {
      EXPECT_THAT(jobs.out, HasSubstr(absl::StrCat("\"before-", i, "\"")));
      EXPECT_THAT(jobs.out, HasSubstr(absl::StrCat("\"after-", i, "\"")));
    }
    std::cout << times << " failovers, the longest took " << longest << "\n";
  }

  const TestDirectory directory_;
  const TestAuthority authority_;
  // Workers and users have no certificate for etcd.
  const TestAuthority etcd_authority_;
  const TlsFiles etcd_files_ = etcd_authority_.Issue(Role::kCoordinator, "c");
  const TlsFiles coordinator_files_ = authority_.Issue(Role::kCoordinator, "c");
  const TlsFiles alice_ = authority_.Issue(Role::kUser, "alice");
  std::string endpoint_, all_;
  std::array<std::string, kCoordinators> addresses_;
  std::unique_ptr<cli::Process> etcd_;
  std::array<std::unique_ptr<Command>, kCoordinators> coordinators_;
  std::vector<std::unique_ptr<Command>> workers_;
};

TEST_F(Failover, FiveTimesTheJobTrainsOnAndNothingAcknowledgedIsLost) { KillTheLeader(5); }

// Run it with tests/long.sh failover.
TEST_F(Failover, DISABLED_FiftyTimes) { KillTheLeader(50); }

TEST_F(Failover, AFollowerAnswersReadsAndNamesTheLeader) {
  Submit("a");
  const int leader = AwaitLeader();
  ASSERT_GE(leader, 0);
  const std::string& follower = addresses_[1 - leader];
  const absl::Time end = absl::Now() + kPatience;
  Result shown;
  do {
    shown = Takt({"job", "a", "-o", "json"}, follower);
  } while (shown.end != "exit status 0" && absl::Now() < end);
  EXPECT_EQ(shown.end, "exit status 0") << shown.err;
  Command refused("takt",
                  WithTls({"cancel", "a", "--coordinator", follower, "--timeout", "1"}, alice_));
  EXPECT_NE(refused.Wait(), "exit status 0");
  EXPECT_THAT(refused.err(), HasSubstr("ask the one that leads: " + addresses_[leader]));
  EXPECT_EQ(Takt({"cancel", "a"}, all_).end, "exit status 0");
}

TEST_F(Failover, ABackupBecomesAStateFileOrTheStateOfAnotherCluster) {
  Submit("a");
  const std::string backup = directory_.Path("backup.sqlite");
  Command fetch("takt",
                WithTls({"admin", "backup", backup, "--coordinator", all_, "--timeout", "30"},
                        authority_.Issue(Role::kAdmin, "root")));
  ASSERT_EQ(fetch.Wait(), "exit status 0") << fetch.err();
  Command restore("takt", {"admin", "restore", backup, "--state", directory_.Path("restored")});
  EXPECT_EQ(restore.Wait(), "exit status 0") << restore.err();
  for (const bool again : {false, true}) {
    Arguments arguments = CoordinatorArguments("other", FreeAddress());
    arguments.insert(arguments.end(), {"--etcd-prefix", "other/", "--import-state", backup});
    Command importer("takt-coordinator", arguments);
    EXPECT_EQ(importer.Wait(), again ? "exit status 1" : "exit status 0") << importer.err();
    EXPECT_EQ(absl::StrContains(importer.err(), "has had jobs already"), again) << importer.err();
  }
}

TEST_F(Failover, OnlyTheLeaderShowsHowMuchOfItsLeaseIsLeft) {
  const int leader = AwaitLeader();
  ASSERT_GE(leader, 0);
  const std::string name = "takt_coordinator_lease_seconds";
  std::optional<double> lease;
  for (const absl::Time end = absl::Now() + kPatience; !lease && absl::Now() < end;)
    lease = Metric(leader, name);
  ASSERT_TRUE(lease.has_value());
  ASSERT_TRUE(coordinators_[1 - leader]->WaitForText("this coordinator follows"))
      << coordinators_[1 - leader]->err();
  EXPECT_GT(*lease, 0);
  EXPECT_LE(*lease, kLeaseSeconds);
  EXPECT_EQ(Metric(leader, "takt_coordinator_leader"), 1);
  EXPECT_EQ(Metric(1 - leader, name), std::nullopt);
  EXPECT_EQ(Metric(1 - leader, "takt_coordinator_leader"), 0);
}

TEST_F(Failover, ALeaderThatIsStoppedForTooLongEndsWhenItGoesOn) {
  const int leader = AwaitLeader();
  ASSERT_GE(leader, 0);
  coordinators_[leader]->Signal(SIGSTOP);
  ASSERT_TRUE(coordinators_[1 - leader]->WaitForText("coordinator ready"))
      << coordinators_[1 - leader]->err();
  coordinators_[leader]->Signal(SIGCONT);
  EXPECT_EQ(coordinators_[leader]->Wait(), "exit status 1");
  EXPECT_THAT(coordinators_[leader]->err(), HasSubstr("leads no more"));
}

}  // namespace
}  // namespace takt
