// SPDX-License-Identifier: Apache-2.0
// Keeps the series about jobs and workers on /metrics.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/metrics/registry.h"
#include "coordinator/job/board.h"
#include "coordinator/job/outbox.h"
#include "coordinator/membership/membership.h"

namespace takt::job {

// One caller at a time.
class ClusterMetrics final {
 public:
  // Both borrowed.
  ClusterMetrics(metrics::Registry* registry, const Board* board)
      : registry_(*registry), board_(*board) {
    SetReadOnly(false);
    SetHeldJobs(0);
  }

  // Call this before the board forgets the jobs that the outbox removes.
  void Drop(const Outbox& outbox);
  // Call this after the board shows the jobs that the outbox publishes.
  void Record(const Outbox& outbox, absl::Time now);
  void SetReadOnly(bool read_only);
  void SetHeldJobs(std::size_t count);
  // Updates what may change without any outbox: the counts of jobs and workers, which workers are
  // lost, and the split of the newest explained step of a job that has ended.
  void Tick(const std::map<std::string, membership::Worker>& workers, absl::Time now);

 private:
  // The series show this of a job.
  struct Shown {
    // The series that change only with these two were set for them.
    std::optional<std::pair<Generation, store::JobState>> described;
    int pp_size = 0;
    // Series of the job that change with each step, so that each is looked up once.
    std::map<const metrics::Metric*, prometheus::Gauge*> gauges;
    std::vector<prometheus::Gauge*> bubbles;  // by pp rank
    std::string id;                           // of the job
    SplitView split;
    std::optional<absl::Time> end;
  };

  // Returns the gauge whose only label is the job.
  prometheus::Gauge& GaugeOf(const std::string& job, const metrics::Metric& metric, Shown& shown);
  void RecordJob(const store::JobRecord& job, Shown& shown);
  void DescribeJob(const store::JobRecord& job, Shown& shown);
  void RecordPlan(const store::JobRecord& job, Shown& shown);
  void RecordLastStep(const store::JobRecord& job, Shown& shown);
  void RecordCheckpoint(const store::JobRecord& job, Shown& shown);
  // Shows the newest split of the board if it is another one than before.
  void RecordNewSplit(const std::string& job, Shown& shown);
  void RecordSplit(const std::string& job, const StepSplit& split);
  void CountStep(const std::string& job, const store::StepRecord& step);
  void CountCheckpoint(const SettledCheckpoint& checkpoint);
  void RecordWorkers(const std::map<std::string, membership::Worker>& workers);
  // Sets the series of the workers that are named. Those that have not changed cost nothing.
  void ShowWorkers(const std::map<std::string, membership::Worker>& workers);
  void DropJob(const std::string& name);

  metrics::Registry& registry_;
  const Board& board_;
  std::map<std::string, Shown> jobs_;  // by name
  // The workers with series of their own, and what these say.
  struct ShownWorker {
    bool connected = false;
    double score = 0;
    bool operator==(const ShownWorker&) const = default;
  };
  std::map<std::string, ShownWorker> workers_;
};

}  // namespace takt::job
