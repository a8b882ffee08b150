// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/backend/backend.h"
#include "worker/train/loss_share.h"

namespace takt::train {

// The losses of the microbatches of the last two steps, in host memory that ops write. There are
// two steps because, without a flush, one step is reported while the losses of the next arrive.
// They implement a program's kScalars slot.
class StepLosses {
 public:
  static constexpr std::int64_t kSteps = 2;
  struct Microbatch {
    double sum = 0;           // the sum of its token losses
    std::int64_t scored = 0;  // the count by which the gradient was divided
  };
  struct Options {
    std::int64_t num_microbatches = 0;
    int leaves = 1;                     // of the rank's replica
    bool holds_last_stage = false;      // false: this rank knows no losses
    bool updates_microbatches = false;  // each gradient is the mean over its own scored tokens
  };

  // backend: borrowed. Errors: kResourceExhausted.
  static absl::StatusOr<StepLosses> Create(backend::Backend& backend, const Options& options);

  // Returns where the loss of a microbatch is kept, in every step with this remainder by kSteps.
  Microbatch* At(std::int64_t remainder, MicrobatchId microbatch) const;

  // Returns the sum over a step whose losses are computed. Call it before those of the step after
  // the next are.
  LossShare Share(StepId step) const;

 private:
  StepLosses(const Options& options, backend::Buffer memory)
      : options_(options), memory_(std::move(memory)) {}

  Options options_;
  backend::Buffer memory_;
};

}  // namespace takt::train
