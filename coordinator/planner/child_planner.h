// SPDX-License-Identifier: Apache-2.0
// Makes plans in a child process. A plan that takes all memory, crashes or does not end then stops
// only the planning of its own job.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "coordinator/planner/planning_child.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::planner {

struct ChildPlannerOptions {
  // This program calls RunPlanningChild if its first argument is kPlanningChild.
  std::string program = "/proc/self/exe";
  std::int64_t memory_bytes = 0;  // limit of the child's address space; 0: none
  bool yields = false;            // the child leaves the cores to every other process
  absl::Duration time_limit = timeouts::kPlanningLimit;
  const Clock* clock = &Clock::Real();
};

class ChildPlanner final {
 public:
  explicit ChildPlanner(ChildPlannerOptions options);

  // Returns the plan that plan::MakePlan gives, or its error. One caller at a time. The child ends
  // at the latest when the calling thread ends. Blocks: until the child has ended.
  // Other errors: kResourceExhausted (out of memory, or no process is free), kDeadlineExceeded (the
  // time limit), kInternal (it crashed), kCancelled (Stop).
  absl::StatusOr<plan::Plan> Make(const config::JobSpec& job, const plan::PlanOptions& options);

  // Kills the child, and every later one as soon as it starts. Any thread may call it.
  void Stop();

 private:
  const ChildPlannerOptions options_;
  const FileDescriptor stop_;
};

}  // namespace takt::planner
