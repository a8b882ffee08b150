// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/child_planner.h"

#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "coordinator/planner/child_process.h"
#include "coordinator/planner/plan_serde.h"

namespace takt::planner {
namespace {

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
        "the planner ran out of memory; it may take ", FormatBytes(options.memory_bytes),
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
    : options_(std::move(options)), stop_fd_(eventfd(0, EFD_CLOEXEC)) {
  TAKT_CHECK(stop_fd_ >= 0);
}

ChildPlanner::~ChildPlanner() { close(stop_fd_); }

absl::StatusOr<plan::Plan> ChildPlanner::Make(const config::JobSpec& job,
                                              const plan::PlanOptions& options) {
  ChildOptions child{.argv = ArgumentsOf(options_.memory_bytes),
                     .input = FormatRequest(job, options),
                     .time_limit = options_.time_limit,
                     .stop_fd = stop_fd_};
  child.argv.insert(child.argv.begin(), options_.program);
  ASSIGN_OR_RETURN(const ChildEnd end, RunChild(child));
  RETURN_IF_ERROR(StatusOf(end, options_));
  return ParseAnswer(end.output, {job, options});
}

void ChildPlanner::Stop() { eventfd_write(stop_fd_, 1); }

}  // namespace takt::planner
