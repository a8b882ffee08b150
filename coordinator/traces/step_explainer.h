// SPDX-License-Identifier: Apache-2.0
// Explains where the time of the newest step of each running job goes. It has a thread of its own,
// explains each job at most once a second, and rests nine times as long as it worked.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/steady_cond_var.h"
#include "common/trace/job_trace.h"
#include "coordinator/job/step_split.h"
#include "coordinator/traces/trace_keeper.h"

namespace takt::traces {

// The split of the trace's last step. Errors: those of MakeTimeline.
absl::StatusOr<job::StepSplit> SplitNewest(const trace::JobTrace& trace);

// Ends when it is destroyed, after the step that it explains.
class StepExplainer final {
 public:
  // Both are called on the explainer's thread. Learn gets the newest steps of a job, some of which
  // it got before. It may be empty.
  using Show = std::function<void(const std::string& job, job::StepSplit split)>;
  using Learn = std::function<void(const trace::JobTrace& trace)>;

  // traces: borrowed.
  StepExplainer(TraceKeeper* traces, Show show, Learn learn = nullptr);
  ~StepExplainer();

 private:
  void Loop();
  void ExplainNews();
  // True: the explainer ends.
  bool Rest(absl::Duration time);

  TraceKeeper* const traces_;
  const Show show_;
  const Learn learn_;
  absl::Mutex mutex_;
  SteadyCondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace takt::traces
