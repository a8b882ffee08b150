// SPDX-License-Identifier: Apache-2.0
// Plans in a child process, so that a plan that takes all memory, crashes or does not end takes
// only itself along.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/planner/planning_child.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::planner {

struct ChildPlannerOptions {
  // A program that calls RunPlanningChild when kPlanningChild is its first argument.
  std::string program = "/proc/self/exe";
  std::int64_t memory_bytes = 0;  // limit of the child's address space; 0: none
  absl::Duration time_limit = timeouts::kPlanningLimit;
};

class ChildPlanner final {
 public:
  explicit ChildPlanner(ChildPlannerOptions options);
  // Make must have returned.
  ~ChildPlanner();
  ChildPlanner(const ChildPlanner&) = delete;
  ChildPlanner& operator=(const ChildPlanner&) = delete;

  // The plan that plan::MakePlan gives, or its error. One caller at a time; the child ends at the
  // latest with the thread that calls. Blocks: until the child has ended.
  // Errors besides: kResourceExhausted (out of memory, or no process is free), kDeadlineExceeded
  // (the time limit), kInternal (it crashed), kCancelled (Stop).
  absl::StatusOr<plan::Plan> Make(const config::JobSpec& job, const plan::PlanOptions& options);

  // Kills the child and lets every later one end at once. Any thread.
  void Stop();

 private:
  const ChildPlannerOptions options_;
  const int stop_fd_;
};

}  // namespace takt::planner
