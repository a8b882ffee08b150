// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/backend/backend.h"

namespace takt::train {

// Says how the tokens of a step were shared among the experts of one block, as far as this rank
// computed it.
struct ExpertLoad {
  int block = 0;
  double max_over_mean = 0;  // rows of the fullest expert over the mean; 1: all are equally full
  // The entropy of the experts' shares over that of equal shares. 1: all are equally full; 0: one
  // expert has all tokens.
  double entropy = 0;
  std::int64_t dropped = 0;  // pairs of a token and an expert that no expert computed
};

// Counts rows by expert for the last three steps, in host memory that ops write. While a step is
// reported, Fs of the next one may run, and where steps overlap those of the one after that.
class ExpertCounts {
 public:
  static constexpr std::int64_t kSteps = 3;
  struct Options {
    std::int64_t num_microbatches = 0;
    int blocks = 0;          // of the model
    int experts = 0;         // of a block; 0: the model has none, and nothing is counted
    std::int64_t pairs = 0;  // of a microbatch: tokens times experts of a token
    int ranks = 1;           // that share the experts, each so many neighbouring ones
  };

  // backend: borrowed. Errors: kResourceExhausted.
  static absl::StatusOr<ExpertCounts> Create(backend::Backend& backend, const Options& options);

  // Returns the counts of a microbatch, in every step with this remainder by kSteps: [blocks,
  // experts]. It is null if nothing is counted.
  std::int32_t* At(std::int64_t remainder, MicrobatchId microbatch) const;

  // Returns the loads of a step whose Fs are done: of each block that this rank computed. Call it
  // before the Fs of the third step after it begin.
  std::vector<ExpertLoad> Loads(StepId step) const;
  // Returns, likewise, the rows that this rank's tokens give to the rank which gets most of them,
  // over the mean: a mean over blocks and microbatches. 0: no ranks share experts. It is a little
  // more than that of the rows of all ranks, whose tokens differ by chance.
  double Imbalance(StepId step) const;

 private:
  ExpertCounts(const Options& options, backend::Buffer memory)
      : options_(options), memory_(std::move(memory)) {}

  Options options_;
  backend::Buffer memory_;
};

}  // namespace takt::train
