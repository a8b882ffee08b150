// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/child_planner.h"

#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "coordinator/planner/child_process.h"
#include "coordinator/planner/plan_serde.h"

namespace takt::planner {
namespace {

// "exit status 3", "signal 9 (Killed)".
std::string EndText(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

// Returns OK if the child has answered.
absl::Status StatusOf(const ChildEnd& end, const ChildPlannerOptions& options) {
  if (end.cause == ChildEnd::Cause::kStopped) {
    return absl::CancelledError("the coordinator stops; the job is planned again afterwards");
  }
  const std::string words = end.last_words.empty() ? "" : absl::StrCat(": ", end.last_words);
  if (end.cause == ChildEnd::Cause::kTimedOut) {
    return absl::DeadlineExceededError(
        absl::StrCat("the planner did not end within ", absl::FormatDuration(options.time_limit),
                     " and was killed; give the job a schedule or larger microbatches", words));
  }
  if (WIFEXITED(end.wait_status) && WEXITSTATUS(end.wait_status) == 0) return absl::OkStatus();
  if (WIFEXITED(end.wait_status) && WEXITSTATUS(end.wait_status) == kExitOutOfMemory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the planner ran out of memory; it may take ", FormatMemory(options.memory_bytes),
        " (--planner-memory of the coordinator)", words));
  }
  if (WIFSIGNALED(end.wait_status) && WTERMSIG(end.wait_status) == SIGKILL) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the planner was killed, as the kernel does when the machine's memory runs out", words));
  }
  return absl::InternalError(
      absl::StrCat("the planner crashed with ", EndText(end.wait_status), words));
}

}  // namespace

ChildPlanner::ChildPlanner(ChildPlannerOptions options)
    : options_(std::move(options)), stop_(eventfd(0, EFD_CLOEXEC)) {
  TAKT_CHECK(stop_.get() >= 0);
}

absl::StatusOr<plan::Plan> ChildPlanner::Make(const config::JobSpec& job,
                                              const plan::PlanOptions& options) {
  ASSIGN_OR_RETURN(
      const ChildEnd end,
      RunChild({.argv = {options_.program, kPlanningChild, absl::StrCat(options_.memory_bytes),
                         absl::StrCat(getpid()), options_.yields ? "yields" : "hurries"},
                .input = FormatRequest(job, options),
                .time_limit = options_.time_limit,
                .stop_fd = stop_.get(),
                .clock = options_.clock}));
  RETURN_IF_ERROR(StatusOf(end, options_));
  return ParseAnswer(end.output, {job, options});
}

void ChildPlanner::Stop() { eventfd_write(stop_.get(), 1); }

}  // namespace takt::planner
