// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <mutex>

#include "common/base/id.h"
#include "worker/train/trainer.h"

namespace takt::train {

// The results of the last few steps. The lane that runs NORM_EXCHANGE writes them, and whoever
// reports reads them. Thread-safe.
class ResultRing {
 public:
  void Put(StepId step, const StepResult& result) {
    const std::lock_guard lock(mutex_);
    results_[Index(step)] = result;
  }
  StepResult Get(StepId step) const {
    const std::lock_guard lock(mutex_);
    return results_[Index(step)];
  }

 private:
  static std::size_t Index(StepId step) { return static_cast<std::size_t>(step.value()) % kSize; }

  // A lane may be one step ahead of the step that is reported.
  static constexpr std::size_t kSize = 4;
  mutable std::mutex mutex_;
  std::array<StepResult, kSize> results_;  // guarded by mutex_
};

}  // namespace takt::train
