// SPDX-License-Identifier: Apache-2.0
// Workers of a host behind a relay, with certificates, as real processes.
#include <signal.h>

#include "common/certificates/test_authority.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using access::Role;
using certificates::TestAuthority;
using certificates::TlsFiles;
using certificates::WithTls;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr char kAround[] = "attached without the relay";

// This job trains until it is cancelled.
constexpr char kEndlessJob[] =
    "name: a\n"
    "model: {family: emulated, layers: 2, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, "
    "activation_bytes: 4096}\n"
    "batch: {global: 4, microbatch: 1}\n"
    "steps: 1000000\n"
    "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n";

class RelayTest : public testing::Test {
 protected:
  using Arguments = std::vector<std::string>;

  void StartCoordinator() {
    coordinator_ = std::make_unique<Command>(
        "takt-coordinator",
        WithTls({"--settings", "", "--state", directory_.Path("state"), "--listen", "127.0.0.1:0"},
                authority_.Issue(Role::kCoordinator, "c1")));
    ASSERT_TRUE(coordinator_->WaitForText("coordinator ready")) << coordinator_->err();
    address_ = json::parse(ReadFile(directory_.Path("state/coordinator.json")))["listen"];
  }
  void StartRelay(const TlsFiles& files) {
    relay_ = std::make_unique<Command>(
        "takt-relay", WithTls({"--settings", "", "--listen", socket_, "--coordinator", address_,
                               "--metrics-listen", ""},
                              files));
    ASSERT_TRUE(relay_->WaitForText("attached")) << relay_->err();
  }
  Command& StartWorker(const std::string& name) {
    workers_.push_back(std::make_unique<Command>(
        "takt-worker", WithTls({"--settings", "", "--coordinator", address_, "--relay", socket_,
                                "--data-root", "/", "--checkpoint-root", "/", "--threads", "1",
                                "--metrics-listen", "", "--device", "cpu"},
                               authority_.Issue(Role::kWorker, name))));
    EXPECT_TRUE(workers_.back()->WaitForText("attached")) << workers_.back()->err();
    return *workers_.back();
  }
  std::string Takt(Arguments arguments, std::string* out = nullptr) {
    arguments.insert(arguments.end(), {"--coordinator", address_});
    Command command("takt", WithTls(std::move(arguments), alice_));
    std::string end = command.Wait();
    if (out != nullptr) *out = command.out();
    return end;
  }
  // Returns job a, once it has trained beyond `step`.
  json AwaitStep(std::int64_t step) {
    const absl::Time end = absl::Now() + kPatience;
    while (absl::Now() < end) {
      std::string out;
      if (Takt({"job", "a", "-o", "json"}, &out) != "exit status 0") continue;
      json job = json::parse(out);
      if (job.contains("last_step") && job["last_step"]["step"] > step) return job;
    }
    ADD_FAILURE() << "no step after " << step;
    return {};
  }

  const TestDirectory directory_;
  const TestAuthority authority_;
  const TlsFiles alice_ = authority_.Issue(Role::kUser, "alice");
  const std::string socket_ = "unix:" + directory_.Path("relay");
  std::string address_;
  std::unique_ptr<Command> coordinator_, relay_;
  std::vector<std::unique_ptr<Command>> workers_;
};

TEST_F(RelayTest, AJobTrainsOnWithoutItAndWithAnotherOne) {
  StartCoordinator();
  const TlsFiles host = authority_.Issue(Role::kHost, "n");
  StartRelay(host);
  for (const char* name : {"n-0", "n-1"})
    EXPECT_THAT(StartWorker(name).err(), Not(HasSubstr(kAround)));
  ASSERT_EQ(Takt({"submit", directory_.Write("a.yaml", kEndlessJob)}), "exit status 0");
  json job = AwaitStep(0);
  const json generation = job["generation"];
  EXPECT_THAT(coordinator_->err(), HasSubstr("audit who=host/n"));
  EXPECT_THAT(coordinator_->err(), Not(HasSubstr("audit who=worker/n-0")));

  relay_->Signal(SIGKILL);
  for (const auto& worker : workers_) ASSERT_TRUE(worker->WaitForText(kAround)) << worker->err();
  job = AwaitStep(job["last_step"]["step"]);
  EXPECT_EQ(job["generation"], generation);

  StartRelay(host);
  for (const auto& worker : workers_)
    ASSERT_TRUE(worker->WaitForText("the relay of this host is back")) << worker->err();
  job = AwaitStep(AwaitStep(job["last_step"]["step"])["last_step"]["step"]);
  EXPECT_EQ(job["generation"], generation);
  EXPECT_EQ(job["state"], "RUNNING");
  Command health("takt-relay", {"--settings", "", "--listen", socket_, "--health=ready"});
  EXPECT_EQ(health.Wait(), "exit status 0") << health.err();
}

TEST_F(RelayTest, AWorkerOfAnotherHostGoesAroundIt) {
  StartCoordinator();
  StartRelay(authority_.Issue(Role::kHost, "m"));
  Command& worker = StartWorker("n-0");
  EXPECT_TRUE(worker.WaitForText(kAround)) << worker.err();
  EXPECT_THAT(worker.err(), HasSubstr("may not speak for worker n-0"));
}

TEST_F(RelayTest, NeedsACertificateOfAHost) {
  Command relay("takt-relay", WithTls({"--settings", "", "--listen", socket_, "--coordinator",
                                       "127.0.0.1:1", "--metrics-listen", ""},
                                      authority_.Issue(Role::kWorker, "n-0")));
  EXPECT_EQ(relay.Wait(), "exit status 2");
  EXPECT_THAT(relay.err(), HasSubstr("worker/n-0"));
  EXPECT_THAT(relay.err(), HasSubstr("certs issue DIR host"));
}

}  // namespace
}  // namespace takt::integration
