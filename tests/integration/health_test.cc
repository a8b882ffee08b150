// SPDX-License-Identifier: Apache-2.0
// `--health` of both daemons, as a probe runs it.
#include <signal.h>

#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using ::testing::HasSubstr;

class HealthProbe : public ::testing::Test {
 protected:
  // The exit of `PROGRAM --health=SERVICE`; `said` gets what it printed.
  std::string Ask(const std::string& program, const std::string& service) {
    Command probe(program, {"--health=" + service, "--health-socket", Socket(program)});
    const std::string end = probe.Wait();
    said_ = probe.out() + probe.err();
    return end;
  }
  // Until the answer is that of a probe that succeeds (0) or fails (1).
  bool Becomes(const std::string& program, const std::string& service, int exit_status) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    const std::string wanted = absl::StrCat("exit status ", exit_status);
    while (Ask(program, service) != wanted) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return true;
  }
  std::unique_ptr<Command> Start(const std::string& program, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--health-socket", Socket(program)});
    return std::make_unique<Command>(program, arguments);
  }
  std::unique_ptr<Command> StartWorker() {
    return Start("takt-worker", {"--coordinator", address_, "--name", "w0"});
  }
  std::unique_ptr<Command> StartCoordinator() {
    return Start("takt-coordinator", {"--listen", address_, "--state", directory_.Path("state")});
  }
  std::string Socket(const std::string& program) const { return directory_.Path(program); }

  const TestDirectory directory_;
  const std::string address_ = "unix:" + directory_.Path("socket");
  std::string said_;
};

TEST_F(HealthProbe, AWorkerLivesWithoutACoordinatorAndIsReadyWithOne) {
  const auto worker = StartWorker();
  ASSERT_TRUE(Becomes("takt-worker", "live", 0)) << said_;
  EXPECT_EQ(said_, "live\n");
  EXPECT_EQ(Ask("takt-worker", "ready"), "exit status 1");
  EXPECT_THAT(said_, HasSubstr("takt-worker: not ready: not attached: "));

  auto coordinator = StartCoordinator();
  EXPECT_TRUE(Becomes("takt-coordinator", "ready", 0)) << said_;
  EXPECT_TRUE(Becomes("takt-worker", "ready", 0)) << said_;

  coordinator->Signal(SIGKILL);
  EXPECT_TRUE(Becomes("takt-worker", "ready", 1));
  EXPECT_EQ(Ask("takt-worker", "live"), "exit status 0") << said_;
  EXPECT_EQ(Ask("takt-coordinator", "live"), "exit status 1");
}

TEST_F(HealthProbe, ADaemonThatStopsAnswersNoMore) {
  const auto coordinator = StartCoordinator();
  ASSERT_TRUE(Becomes("takt-coordinator", "ready", 0)) << said_;
  coordinator->Signal(SIGTERM);
  EXPECT_EQ(coordinator->Wait(), "exit status 0");
  EXPECT_EQ(Ask("takt-coordinator", "ready"), "exit status 1");
  EXPECT_THAT(said_, HasSubstr("nothing answers on " + Socket("takt-coordinator")));
}

TEST_F(HealthProbe, WithoutASocketThereIsNobodyToAsk) {
  Command probe("takt-coordinator", {"--health"});
  EXPECT_EQ(probe.Wait(), "exit status 1");
  EXPECT_THAT(probe.err(), HasSubstr("set health_socket in the settings"));
}

}  // namespace
}  // namespace takt::integration
