// SPDX-License-Identifier: Apache-2.0
// Turns one rank's instructions into metrics. It sums a whole step before it touches a metric, so
// that a step costs a few microseconds, however often the metrics are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/mesh/mesh.h"
#include "common/metrics/registry.h"
#include "common/program/program.h"
#include "worker/engine/engine.h"
#include "worker/train/expert_counts.h"
#include "worker/train/trainer.h"

namespace takt::session {

// One caller at a time.
class StepMetrics {
 public:
  // registry: borrowed for the object's life. Its series of `job` must not be dropped before this
  // object is destroyed.
  // at: the rank's place in the mesh.
  StepMetrics(metrics::Registry& registry, const std::string& job, const mesh::Coordinates& at,
              const program::Program& program);

  // timings: those of the body's instructions, in the order of the body.
  void Record(const std::vector<engine::InstructionTiming>& timings);
  // Counts whether a step without a barrier was undone or held. timing: of that step; where it ran
  // what was ahead of it again, because the step before was undone, this took time.
  void RecordOverlap(const train::StepResult& result, const engine::StepTiming& timing);
  // loads: those of the blocks with experts that this rank computed.
  void RecordExperts(const std::vector<train::ExpertLoad>& loads);

 private:
  struct OpSeries {
    prometheus::Histogram* histogram = nullptr;
    std::vector<double> counts;  // by bucket, of the current step
    double sum_seconds = 0;
  };
  // The series of one direction of messages.
  struct Messages {
    prometheus::Counter* bytes = nullptr;
    prometheus::Counter* wait_seconds = nullptr;
    double bytes_per_step = 0;
  };
  // An instruction that computes, and the messages that it needs: those that must have arrived, and
  // those that must have been sent so that their buffer is free.
  struct Consumer {
    std::size_t instruction = 0;
    std::size_t previous = 0;  // on its lane; equal to `instruction` for the first one
    std::vector<std::size_t> messages;
  };

  void AddOps(metrics::Registry& registry, const std::string& job, const program::Program& program);
  void AddMessages(metrics::Registry& registry, const std::string& job,
                   const program::Program& program);
  void FindConsumers(const program::Program& program);
  void RecordOps(const std::vector<engine::InstructionTiming>& timings);
  void RecordWaits(const std::vector<engine::InstructionTiming>& timings);

  metrics::Registry& registry_;
  const std::string job_;
  std::vector<OpSeries> op_series_;
  struct SeriesOf {
    std::size_t index = 0;  // in op_series_
    int times = 1;          // a W of several microbatches counts as that many Ws of equal length
  };
  std::vector<SeriesOf> series_of_instruction_;  // by position in the body
  // Null: steps have a barrier.
  prometheus::Counter* undone_steps_ = nullptr;
  prometheus::Counter* held_steps_ = nullptr;
  prometheus::Counter* undone_seconds_ = nullptr;
  Messages activations_, gradients_;
  std::vector<Messages*> messages_of_instruction_;  // null: the instruction is not a message
  std::vector<Consumer> consumers_;
};

}  // namespace takt::session
