// SPDX-License-Identifier: Apache-2.0
// What a worker keeps of its job's state in memory, in place of worker_checkpoint::CopyStore. A
// number stands for the state of each layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/id.h"
#include "tests/simulation/config.h"

namespace takt::simulation {

// Layers that follow each other, without `end`.
struct LayerRange {
  LayerId first, end;
  bool operator==(const LayerRange&) const = default;
};

inline LayerRange LayersOf(PpRank rank, int pp_size) {
  const auto begin = [pp_size](int p) { return LayerId(p * kLayers / pp_size); };
  return {begin(rank.value()), begin(rank.value() + 1)};
}

struct StateCopy {
  LayerRange layers;
  StepId step;              // 0: it is not complete
  std::uint64_t state = 0;  // of each of these layers
};
using StateCopies = std::vector<std::shared_ptr<StateCopy>>;

// One thread. It outlives the generations of the job, and ends with the process.
class KeptCopies final {
 public:
  // Returns the copies of the job, and frees those of any other.
  StateCopies Begin(const std::string& job, const std::string& job_id) {
    if (job_id != job_id_) copies_.clear();
    job_ = job;
    job_id_ = job_id;
    return copies_;
  }
  // Keeps these and no others, unless the job was forgotten.
  void Keep(const std::string& job_id, StateCopies copies) {
    if (job_id == job_id_) copies_ = std::move(copies);
  }
  void Forget(const std::string& job) {
    if (job != job_) return;
    job_.clear();
    job_id_.clear();
    copies_.clear();
  }

 private:
  std::string job_, job_id_;
  StateCopies copies_;
};

}  // namespace takt::simulation
