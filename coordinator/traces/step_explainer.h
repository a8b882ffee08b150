// SPDX-License-Identifier: Apache-2.0
// Explains, live, where the time of jobs' newest steps goes: on a thread of its own, never faster
// than once a second a job, and resting nine times as long as it worked.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/trace/job_trace.h"
#include "coordinator/job/step_split.h"
#include "coordinator/traces/trace_keeper.h"

namespace takt::traces {

// Of the trace's last step. Errors: those of MakeTimeline.
absl::StatusOr<job::StepSplit> SplitNewest(const trace::JobTrace& trace);

// Ends when destroyed, after the step at hand.
class StepExplainer final {
 public:
  // Called on the explainer's thread.
  using Show = std::function<void(const std::string& job, job::StepSplit split)>;

  // traces: borrowed.
  StepExplainer(TraceKeeper* traces, Show show);
  ~StepExplainer();

 private:
  void Loop();
  void ExplainNews();
  // True: the end has come.
  bool Rest(absl::Duration time);

  TraceKeeper* const traces_;
  const Show show_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace takt::traces
