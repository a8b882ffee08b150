// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/job_run.h"

#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/control/assignment.h"
#include "common/trace/encoding.h"
#include "common/trace/timeline.h"
#include "tests/bench/process_group.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/session/abortable_rendezvous.h"
#include "worker/session/pipeline_runner.h"

namespace takt::bench {
namespace {

class BorrowedRendezvous final : public session::AbortableRendezvous {
 public:
  explicit BorrowedRendezvous(transport::Rendezvous& rendezvous) : rendezvous_(rendezvous) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return rendezvous_.Set(key, value);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return rendezvous_.Wait(key, timeout);
  }
  // Nobody stops these runners. When a rank fails, the processes of the others are killed.
  void Abort() override {}

 private:
  transport::Rendezvous& rendezvous_;
};

control::Assignment AssignmentOf(const config::JobSpec& job, const plan::Plan& plan, int threads,
                                 Rank rank) {
  control::Assignment assignment{.key = {job.name, Generation(1)},
                                 .rank = rank,
                                 .job = job,
                                 .mesh = plan.mesh,
                                 .partition = plan.partition,
                                 .program = plan.programs[plan.mesh.PpRankOf(rank).value()],
                                 .threads = threads,
                                 .transport = config::TransportKind::kShm,
                                 .device = config::DeviceKind::kCpu,
                                 .secret = std::string(control::kSecretBytes, 's'),
                                 .predicted_step_seconds = plan.predicted_step_seconds,
                                 .predicted_bubble_fraction = plan.predicted_bubble_fraction};
  assignment.vocabulary_ends = plan.vocabulary_ends;
  assignment.bucket_bytes = plan.bucket_bytes;
  return assignment;
}

// Returns the encoded traces of the rank's steps, each after a line with its length.
absl::StatusOr<std::string> RunRank(const control::Assignment& assignment,
                                    const std::string& data_root,
                                    transport::Rendezvous& rendezvous) {
  std::string traces;
  const std::unique_ptr<session::RankRunner> runner =
      session::CreatePipelineRunner({.data_root = data_root,
                                     .make_rendezvous =
                                         [&rendezvous](const control::JobKey&) {
                                           return std::make_unique<BorrowedRendezvous>(rendezvous);
                                         },
                                     .make_backends =
                                         [](const control::Assignment&, int threads) {
                                           return backend::CreateCpuBackends({.threads = threads});
                                         },
                                     .on_trace =
                                         [&traces](const std::string& trace) {
                                           absl::StrAppend(&traces, trace.size(), "\n", trace);
                                         }},
                                    assignment);
  RETURN_IF_ERROR(runner->Prepare().status());
  RETURN_IF_ERROR(runner->Run([](const session::Report&) {}).status());
  return traces;
}

// Reads the text of RunRank.
absl::StatusOr<std::vector<trace::StepTrace>> ReadTraces(const std::string& text) {
  std::vector<trace::StepTrace> steps;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line_end = text.find('\n', at);
    std::size_t size = 0;
    if (line_end == std::string::npos || !absl::SimpleAtoi(text.substr(at, line_end - at), &size) ||
        size > text.size() - line_end - 1) {
      return absl::InternalError("a rank returned traces that are cut off");
    }
    at = line_end + 1;
    ASSIGN_OR_RETURN(trace::StepTrace step, trace::Decode(std::string_view(text).substr(at, size)));
    steps.push_back(std::move(step));
    at += size;
  }
  return steps;
}

// Each rank decides by itself which of its short steps it sends (worker/session/trace_sampler.h).
void KeepCommonSteps(std::vector<trace::RankTrace>& ranks) {
  std::map<StepId, std::size_t> times;
  for (const trace::RankTrace& rank : ranks) {
    for (const trace::StepTrace& step : rank.steps) ++times[step.step];
  }
  for (trace::RankTrace& rank : ranks) {
    std::erase_if(rank.steps,
                  [&](const trace::StepTrace& step) { return times.at(step.step) < ranks.size(); });
  }
}

}  // namespace

std::vector<double> JobRun::SecondsAfter(std::int64_t warmup_steps) const {
  std::vector<double> seconds;
  for (std::size_t i = 0; i < step_seconds.size(); ++i) {
    if (trace.ranks.front().steps[i].step > StepId(warmup_steps))
      seconds.push_back(step_seconds[i]);
  }
  return seconds;
}

absl::StatusOr<JobRun> RunJob(const config::JobSpec& job, const plan::Plan& plan, int threads,
                              const std::string& data_root) {
  const auto body = [&](Rank rank, transport::Rendezvous& rendezvous) {
    return RunRank(AssignmentOf(job, plan, threads, rank), data_root, rendezvous);
  };
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, RunProcesses(plan.mesh.size(), body));
  JobRun run{.trace = {.job = job.name,
                       .generation = Generation(1),
                       .mesh = plan.mesh,
                       .programs = plan.programs,
                       .predicted = plan.costs}};
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(std::vector<trace::StepTrace> steps, ReadTraces(text));
    run.trace.ranks.push_back({.steps = std::move(steps)});
  }
  KeepCommonSteps(run.trace.ranks);
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(run.trace));
  for (const trace::StepWindow& window : timeline.steps) {
    run.step_seconds.push_back(static_cast<double>(window.end_nanos - window.start_nanos) * 1e-9);
  }
  return run;
}

}  // namespace takt::bench
