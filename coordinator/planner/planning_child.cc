// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planning_child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <new>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/plan_serde.h"

namespace takt::planner {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// Sanitizers reserve more address space than any limit allows.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsMemory = false;
#else
constexpr bool kLimitsMemory = true;
#endif

void LimitMemory(std::int64_t bytes) {
  std::set_new_handler([] { _exit(kExitOutOfMemory); });
  if (bytes > 0 && kLimitsMemory) {
    const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    setrlimit(RLIMIT_AS, &limit);
  }
  // The signal says enough about a crash, so no core is written.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // If the machine has no more memory, the kernel kills the child and not the coordinator.
  constexpr char kFirst[] = "1000";
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  if (write(file, kFirst, sizeof(kFirst) - 1) < 0) std::perror("oom_score_adj");
  close(file);
}

std::string ReadAll(std::FILE* file) {
  std::string bytes;
  char block[1 << 16];
  while (const std::size_t count = std::fread(block, 1, sizeof(block), file))
    bytes.append(block, count);
  return bytes;
}

}  // namespace

std::vector<std::string> ArgumentsOf(std::int64_t memory_bytes) {
  return {kPlanningChild, absl::StrCat(memory_bytes), absl::StrCat(getpid())};
}

int RunPlanningChild(const std::vector<std::string>& arguments, const MakePlan& make_plan) {
  std::int64_t memory_bytes = 0;
  pid_t parent = 0;
  if (arguments.size() != 2 || !absl::SimpleAtoi(arguments[0], &memory_bytes) ||
      !absl::SimpleAtoi(arguments[1], &parent)) {
    std::fprintf(stderr, "the coordinator itself starts its planner\n");
    return kExitUsage;
  }
  // The kernel kills the child when the coordinator ends. The second line finds a coordinator that
  // ended before the first one.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return kExitFailed;
  LimitMemory(memory_bytes);
  const absl::StatusOr<PlanRequest> request = ParseRequest(ReadAll(stdin));
  const std::string answer =
      FormatAnswer(request.ok() ? make_plan(request->job, request->options) : request.status());
  const bool written = std::fwrite(answer.data(), 1, answer.size(), stdout) == answer.size() &&
                       std::fflush(stdout) == 0;
  if (!written) std::perror("the answer");
  return written ? 0 : kExitFailed;
}

}  // namespace takt::planner
