// SPDX-License-Identifier: Apache-2.0
// Plans a job and trains it in this process: a thread per rank, the in-process transport, the real
// engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "worker/backend/backend.h"
#include "worker/train/trainer.h"

namespace takt::numerics {

struct RunResult;

struct RunOptions {
  // All of it counts: parallelism, data (paths absolute), steps.
  config::JobSpec job;
  // Called from threads of all ranks, one at a time, with the tensors of data-parallel
  // rank 0 only.
  train::TensorObserver observer;
  // Steps of one Run of the engine, as between two validations; 0: all of them.
  std::int64_t stop_every = 0;
  // So many ranks split the layers of each rank of the plan, into so many leaves. The plan is made
  // without them, so tests reach what plans refuse.
  model::TensorShare tensor = {};
  // Goes on from the state that this run left, with the step after its last one; null: from initial
  // weights. Neither run's ranks share the optimizer's state.
  const RunResult* resume = nullptr;
  // The device that the plan is made for, whatever computes: kCuda has activations of a bf16 job in
  // bf16.
  config::DeviceKind planned_for = config::DeviceKind::kCpu;
  // The head's slices have so many rows (model::Model::head_slice); 0: as the plan says.
  std::int64_t head_slice = 0;
  // The plan has no barrier, whatever the job says.
  bool planned_without_barrier = false;
  // False: the halves of pairs run one after the other, even where ranks meet inside them.
  bool pairs_beside = true;
  // What each rank computes on; empty: the CPU.
  std::function<std::unique_ptr<backend::BackendFactory>(int threads)> make_backends = {};
  // What all ranks compute on together; null: each has its own.
  backend::BackendFactory* device = nullptr;
};

using Tensors = std::map<std::string, std::vector<float>>;

struct RunResult {
  std::vector<train::StepResult> steps;
  // They are of the last step, before clipping. There are none if ranks share the optimizer's
  // state, as none of them has whole ones.
  Tensors gradients;
  Tensors weights;                        // after the last step
  Tensors first_moments, second_moments;  // then, where no ranks share them
  std::optional<double> validation_loss;  // with those weights; if the job has a validation set
  // Says how experts were loaded in the last step, rank by rank.
  std::vector<train::ExpertLoad> expert_loads;
};

// Checks on the way that all ranks tell the same results and hold the same weights.
absl::StatusOr<RunResult> TrainInProcess(const RunOptions& options);

}  // namespace takt::numerics
