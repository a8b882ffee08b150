// SPDX-License-Identifier: Apache-2.0
// One rank's instructions as metrics. Sums a step before it touches a metric, so that a step costs
// a few microseconds whatever the number of scrapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/mesh/mesh.h"
#include "common/metrics/registry.h"
#include "common/program/program.h"
#include "worker/engine/engine.h"

namespace takt::session {

// One caller at a time.
class StepMetrics {
 public:
  // registry: borrowed for the object's life; its series of `job` must not be dropped before.
  StepMetrics(metrics::Registry& registry, const std::string& job, DpRank dp_rank,
              const program::Program& program);

  // timings: of the body, in its order.
  void Record(const std::vector<engine::InstructionTiming>& timings);

 private:
  struct OpSeries {
    prometheus::Histogram* histogram = nullptr;
    std::vector<double> counts;  // by bucket, of the step at hand
    double sum_seconds = 0;
  };
  // Of one direction of messages.
  struct Messages {
    prometheus::Counter* bytes = nullptr;
    prometheus::Counter* wait_seconds = nullptr;
    double bytes_per_step = 0;
  };
  // An instruction that computes, and the messages that it needs: those that must have come, and
  // those that must have gone for their buffer to be free.
  struct Consumer {
    std::size_t instruction = 0;
    std::size_t previous = 0;  // on its lane; its own number: it is the first
    std::vector<std::size_t> messages;
  };

  void AddOps(metrics::Registry& registry, const std::string& job, const program::Program& program);
  void AddMessages(metrics::Registry& registry, const std::string& job,
                   const program::Program& program);
  void FindConsumers(const program::Program& program);
  void RecordOps(const std::vector<engine::InstructionTiming>& timings);
  void RecordWaits(const std::vector<engine::InstructionTiming>& timings);

  std::vector<OpSeries> op_series_;
  struct SeriesOf {
    std::size_t index = 0;  // in op_series_
    int times = 1;          // a W of several microbatches counts as so many, of equal length
  };
  std::vector<SeriesOf> series_of_instruction_;  // by position in the body
  Messages activations_, gradients_;
  std::vector<Messages*> messages_of_instruction_;  // null: it is not one
  std::vector<Consumer> consumers_;
};

}  // namespace takt::session
