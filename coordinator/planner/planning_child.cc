// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planning_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <new>

#include "absl/strings/numbers.h"
#include "coordinator/planner/plan_serde.h"

namespace takt::planner {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kLowestPriority = 19;  // of setpriority

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
  if (!(std::ofstream("/proc/self/oom_score_adj") << "1000").flush()) std::perror("oom_score_adj");
}

}  // namespace

int RunPlanningChild(const std::vector<std::string>& arguments, const MakePlan& make_plan) {
  std::int64_t memory_bytes = 0;
  pid_t parent = 0;
  if (arguments.size() != 3 || !absl::SimpleAtoi(arguments[0], &memory_bytes) ||
      !absl::SimpleAtoi(arguments[1], &parent)) {
    std::fprintf(stderr, "the coordinator itself starts its planner\n");
    return kExitUsage;
  }
  // The kernel kills the child when the coordinator ends. The second line finds a coordinator that
  // ended before the first one.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return kExitFailed;
  if (arguments[2] == "yields") setpriority(PRIO_PROCESS, 0, kLowestPriority);
  LimitMemory(memory_bytes);
  const absl::StatusOr<PlanRequest> request =
      ParseRequest({std::istreambuf_iterator<char>(std::cin), {}});
  const std::string answer =
      FormatAnswer(request.ok() ? make_plan(request->job, request->options) : request.status());
  const bool written = std::fwrite(answer.data(), 1, answer.size(), stdout) == answer.size() &&
                       std::fflush(stdout) == 0;
  if (!written) std::perror("the answer");
  return written ? 0 : kExitFailed;
}

}  // namespace takt::planner
