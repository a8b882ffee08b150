// SPDX-License-Identifier: Apache-2.0
// The test program is its own planning child. Its main, at the end, gives the child a planner that
// plans, crashes, hangs or takes all memory as the job's name says.
#include "coordinator/planner/child_planner.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/config/job_spec_serde.h"
#include "coordinator/planner/child_process.h"
#include "coordinator/planner/plan_serde.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/emulated_spec.h"

namespace takt::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMemoryBytes = std::int64_t{1} << 29;

config::JobSpec JobNamed(const std::string& name) {
  return config::ToJobSpec(takt::testing::EmulatedSpec(name, /*pipeline=*/4, /*steps=*/1)).value();
}

const plan::PlanOptions kOptions{.max_workers = 4};

// This is the planner of the child.
absl::StatusOr<plan::Plan> PlanAsNamed(const config::JobSpec& job,
                                       const plan::PlanOptions& options) {
  if (job.name == "crash") std::abort();
  if (job.name == "fail") {
    std::fprintf(stderr, "the first line\nthe last line\n");
    std::exit(7);
  }
  if (job.name == "hungry") {
    for (auto* all = new std::vector<std::string>;;) all->emplace_back(1 << 20, 'x');
  }
  if (job.name == "killed") kill(getpid(), SIGKILL);
  if (job.name == "priority")
    return absl::NotFoundError(std::to_string(getpriority(PRIO_PROCESS, 0)));
  if (job.name.starts_with("hang")) {
    std::printf("%d", getpid());
    std::fflush(stdout);
    while (true) pause();
  }
  return plan::MakePlan(job, options);
}

// Each reading of this clock is an hour after the one before.
class HastyClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch(); }
  int64_t SteadyNanos() const override { return absl::ToInt64Nanoseconds(absl::Hours(++reading_)); }

 private:
  mutable int reading_ = 0;
};

int OpenDescriptors() {
  return static_cast<int>(std::ranges::distance(
      std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// Nothing of a child may be left behind, whatever it did.
class ChildPlannerTest : public ::testing::Test {
 protected:
  ~ChildPlannerTest() override {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was not reaped";
    planner_.reset();
    EXPECT_EQ(OpenDescriptors(), descriptors_);
  }

  absl::StatusOr<plan::Plan> Make(const std::string& job) {
    return planner_->Make(JobNamed(job), kOptions);
  }

  const int descriptors_ = OpenDescriptors();
  std::unique_ptr<ChildPlanner> planner_ =
      std::make_unique<ChildPlanner>(ChildPlannerOptions{.memory_bytes = kMemoryBytes});
};

TEST_F(ChildPlannerTest, MakesThePlanThatThisProcessMakes) {
  const absl::StatusOr<plan::Plan> plan = Make("plan");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(FormatAnswer(*plan), FormatAnswer(plan::MakePlan(JobNamed("plan"), kOptions)));
}

TEST_F(ChildPlannerTest, RefusalIsThePlanners) {
  config::JobSpec job = JobNamed("plan");
  job.parallelism.schedule = "no-such-schedule";
  const absl::Status refused = planner_->Make(job, kOptions).status();
  EXPECT_EQ(refused, plan::MakePlan(job, kOptions).status());
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
}

TEST_F(ChildPlannerTest, PlanThatTakesAllMemoryEndsAlone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more address space than a limit allows";
#endif
  const absl::Status status = Make("hungry").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ran out of memory; it may take 512 MiB (--planner-memory"));
  EXPECT_TRUE(Make("plan").ok());
}

TEST_F(ChildPlannerTest, CrashNamesItsSignal) {
  const absl::Status status = Make("crash").status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("crashed with signal 6 (Aborted)"));
  EXPECT_TRUE(Make("plan").ok());
}

TEST_F(ChildPlannerTest, FailureCarriesItsLastWords) {
  EXPECT_THAT(std::string(Make("fail").status().message()),
              HasSubstr("crashed with exit status 7: the last line"));
}

TEST_F(ChildPlannerTest, ChildThatIsKilledEndsItsPlanOnly) {
  const absl::Status status = Make("killed").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the planner was killed"));
  EXPECT_TRUE(Make("plan").ok());
}

TEST_F(ChildPlannerTest, PlanThatDoesNotEndIsKilledAtItsDeadline) {
  const HastyClock clock;
  planner_ = std::make_unique<ChildPlanner>(
      ChildPlannerOptions{.memory_bytes = kMemoryBytes, .clock = &clock});
  const absl::Status status = Make("hang").status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("did not end within 5m"));
}

TEST_F(ChildPlannerTest, ChildThatYieldsHasTheLowestPriority) {
  const int own = getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(Make("priority").status().message(), std::to_string(own));
  planner_ = std::make_unique<ChildPlanner>(
      ChildPlannerOptions{.memory_bytes = kMemoryBytes, .yields = true});
  EXPECT_EQ(Make("priority").status().message(), "19");
  EXPECT_TRUE(Make("plan").ok());
}

TEST_F(ChildPlannerTest, StopKillsTheChild) {
  std::thread stopper([this] { planner_->Stop(); });
  const absl::Status status = Make("hang").status();
  stopper.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsCancelled(Make("plan").status()));
}

TEST_F(ChildPlannerTest, ChildDiesWithItsParent) {
  // The parent is a process that this one can kill. The child's number comes through a pipe.
  int numbers[2];
  ASSERT_EQ(pipe2(numbers, O_CLOEXEC), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    // RunChild would replace the pipe, so the child is started by hand.
    const pid_t own = getpid();
    const pid_t child = fork();
    if (child == 0) {
      dup2(numbers[1], STDOUT_FILENO);
      const int in = memfd_create("request", 0);
      const std::string request = FormatRequest(JobNamed("hang"), kOptions);
      if (write(in, request.data(), request.size()) < 0) _exit(1);
      lseek(in, 0, SEEK_SET);
      dup2(in, STDIN_FILENO);
      const std::string number = std::to_string(own);
      execl("/proc/self/exe", "planner_test", kPlanningChild, "0", number.c_str(), "hurries",
            nullptr);
      _exit(1);
    }
    while (true) pause();
  }
  close(numbers[1]);
  char text[16] = {};
  ASSERT_GT(read(numbers[0], text, sizeof(text) - 1), 0);
  const int child = static_cast<int>(syscall(SYS_pidfd_open, std::atoi(text), 0));
  ASSERT_GE(child, 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  pollfd ended{child, POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 60'000), 1) << "the planning child outlived its parent";
  close(child);
  close(numbers[0]);
}

TEST(RunChild, ChildHasNoDescriptorsButItsStreams) {
  constexpr int kLeaked = 77;  // not close-on-exec
  ASSERT_EQ(dup2(STDIN_FILENO, kLeaked), kLeaked);
  const absl::StatusOr<ChildEnd> end = RunChild({.argv = {"/bin/sh", "-c", "echo /proc/$$/fd/*"}});
  close(kLeaked);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_THAT(end->output, HasSubstr("/fd/2 "));
  EXPECT_THAT(end->output, Not(HasSubstr("/fd/77")));
}

TEST(RunChild, ProgramThatIsNotThereIsAnError) {
  EXPECT_TRUE(absl::IsInternal(RunChild({.argv = {"/no/such/program"}}).status()));
}

TEST(RunPlanningChild, RefusesArgumentsOfPeople) {
  EXPECT_EQ(RunPlanningChild({"plan"}, PlanAsNamed), 2);
}

}  // namespace
}  // namespace takt::planner

int main(int argc, char** argv) {
  using takt::planner::kPlanningChild;
  if (argc > 1 && std::string(argv[1]) == kPlanningChild)
    return takt::planner::RunPlanningChild({argv + 2, argv + argc}, takt::planner::PlanAsNamed);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
