// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/step_explainer.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/explain/explain.h"
#include "common/trace/messages.h"
#include "common/trace/timeline.h"

namespace takt::traces {
namespace {

// So many steps show what an instruction usually takes.
constexpr int kSteps = 8;
constexpr absl::Duration kLeastRest = absl::Seconds(1);
constexpr int kRestPerWork = 9;
// What it finds out is not urgent, and must not delay the thread that decides.
constexpr int kNice = 10;

// Adds F, I, W, B and O of the newest step by pp rank, without the meetings inside them, which are
// idle time.
void AddCompute(const trace::Timeline& timeline, job::StepSplit& split) {
  const trace::JobTrace& trace = *timeline.trace;
  const trace::MeetingIndex meetings(timeline);
  const int newest = trace.num_steps() - 1;
  for (const trace::Slice& slice : timeline.slices) {
    const program::Op op = trace.ProgramOf(slice.rank).body[slice.instruction].op;
    if (slice.step != split.step || !program::IsCompute(op)) continue;
    const std::int64_t nanos =
        trace::ComputeNanos(slice, meetings.At(newest, {slice.rank, slice.instruction}));
    split.pp_ranks[trace.mesh.PpRankOf(Rank(slice.rank)).value()].compute_seconds +=
        static_cast<double>(nanos) * 1e-9 / trace.mesh.num_chains();
  }
}

void AddIdle(const mesh::Mesh& mesh, const explain::Explanation& explanation,
             job::StepSplit& split) {
  for (std::size_t rank = 0; rank < explanation.ranks.size(); ++rank) {
    job::PpRankSplit& of_rank = split.pp_ranks[mesh.PpRankOf(Rank(static_cast<int>(rank))).value()];
    for (std::size_t cause = 0; cause < of_rank.idle_seconds.size(); ++cause)
      of_rank.idle_seconds[cause] +=
          explanation.ranks[rank].idle_seconds[cause] / mesh.num_chains();
  }
}

}  // namespace

absl::StatusOr<job::StepSplit> SplitNewest(const trace::JobTrace& trace) {
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(trace));
  job::StepSplit split{.generation = trace.generation, .step = timeline.steps.back().step};
  ASSIGN_OR_RETURN(const explain::Explanation explanation, explain::Explain(timeline, split.step));
  split.step_seconds = explanation.step_seconds;
  split.parts = explanation.parts;
  split.pp_ranks.resize(trace.mesh.pp_size);
  AddCompute(timeline, split);
  AddIdle(trace.mesh, explanation, split);
  if (timeline.predicted.has_value()) {
    for (int p = 0; p < trace.mesh.pp_size; ++p)
      split.pp_ranks[p].predicted_compute_seconds = timeline.predicted->ranks[p].busy;
  }
  return split;
}

StepExplainer::StepExplainer(TraceKeeper* traces, Show show, Learn learn)
    : traces_(traces),
      show_(std::move(show)),
      learn_(std::move(learn)),
      thread_(&StepExplainer::Loop, this) {}

StepExplainer::~StepExplainer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stop_.SignalAll();
  thread_.join();
}

void StepExplainer::Loop() {
  pthread_setname_np(pthread_self(), "takt-explain");
  setpriority(PRIO_PROCESS, 0, kNice);  // of this thread
  absl::Duration rest = absl::ZeroDuration();
  while (!Rest(rest)) {
    const std::int64_t start = Clock::Real().SteadyNanos();
    ExplainNews();
    const absl::Duration worked = absl::Nanoseconds(Clock::Real().SteadyNanos() - start);
    rest = std::max(kLeastRest, kRestPerWork * worked);
  }
}

bool StepExplainer::Rest(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  return stop_.AwaitFor(mutex_, absl::Condition(&stopping_), time);
}

void StepExplainer::ExplainNews() {
  for (const std::string& job : traces_->JobsWithNews()) {
    const trace::JobTrace trace = traces_->TakeNewest(job, kSteps);
    if (trace.num_steps() == 0) continue;
    absl::StatusOr<job::StepSplit> split = SplitNewest(trace);
    if (split.ok()) {
      show_(job, *std::move(split));
    } else {
      Log(LogLevel::kDebug, "step not explained",
          {{"job", job}, {"error", split.status().ToString()}});
    }
    if (learn_) learn_(trace);
    if (Rest(absl::ZeroDuration())) return;
  }
}

}  // namespace takt::traces
