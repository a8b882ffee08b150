// SPDX-License-Identifier: Apache-2.0
// One rank's steps as metrics. Sums a step's instructions before it touches a metric, so that a
// step costs a few microseconds whatever the number of scrapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/metrics/registry.h"
#include "common/program/program.h"
#include "worker/engine/engine.h"
#include "worker/session/job_update.h"

namespace takt::session {

// One caller at a time.
class StepMetrics {
 public:
  // registry: borrowed for the object's life; its series of `job` must not be dropped before.
  StepMetrics(metrics::Registry& registry, const std::string& job, Rank rank,
              const program::Program& program);

  void Record(const engine::StepTiming& timing, const StepReport& report, absl::Time now);

 private:
  struct OpSeries {
    prometheus::Histogram* histogram = nullptr;
    std::vector<double> counts;  // by bucket, of the step at hand
    double sum_seconds = 0;
  };

  void RecordOps(const std::vector<engine::InstructionTiming>& timings);

  std::vector<OpSeries> op_series_;
  std::vector<std::size_t> series_of_instruction_;  // by position in the body
  prometheus::Histogram* step_duration_;
  prometheus::Gauge* bubble_fraction_;
  prometheus::Gauge* last_step_timestamp_;
  prometheus::Counter* activation_bytes_;
  prometheus::Counter* gradient_bytes_;
  double activation_bytes_per_step_ = 0, gradient_bytes_per_step_ = 0;
  // Of rank 0 alone, else null.
  prometheus::Gauge* loss_ = nullptr;
  prometheus::Gauge* grad_norm_ = nullptr;
  prometheus::Gauge* learning_rate_ = nullptr;
  prometheus::Counter* tokens_ = nullptr;
};

}  // namespace takt::session
