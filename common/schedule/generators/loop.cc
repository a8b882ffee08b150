// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/loop.h"

#include <algorithm>
#include <string>

namespace takt::schedule {
namespace {

struct Pass {
  int chunk = 0;
  int microbatch = 0;
};

// Number `k` of the forward sequence.
Pass ForwardPass(const LoopShape& shape, int k) {
  const int group_passes = shape.group * shape.num_chunks;
  const int first = k / group_passes * shape.group;
  const int size = std::min(shape.group, shape.num_microbatches - first);
  const int within = k % group_passes;
  return {within / size, first + within % size};
}

Pass BackwardPass(const LoopShape& shape, int k) {
  const Pass pass = ForwardPass(shape, k);
  return {shape.num_chunks - 1 - pass.chunk, pass.microbatch};
}

std::vector<Action> BuildRow(const LoopShape& shape, int rank) {
  const int total = shape.num_chunks * shape.num_microbatches;
  const int warmup = std::min(shape.warmup(rank), total);
  const bool split = static_cast<bool>(shape.lag);
  std::vector<Action> row;
  row.reserve(static_cast<std::size_t>(total) * (split ? 3 : 2));
  const auto add = [&](ActionKind kind, Pass pass) {
    row.push_back(
        {StageId(pass.chunk * shape.num_ranks + rank), kind, MicrobatchId(pass.microbatch)});
  };

  for (int k = 0; k < warmup; ++k) add(ActionKind::kForward, ForwardPass(shape, k));
  int weight_grads = 0;
  for (int k = 0; k < total; ++k) {
    if (warmup + k < total) add(ActionKind::kForward, ForwardPass(shape, warmup + k));
    add(split ? ActionKind::kInputGrad : ActionKind::kBackward, BackwardPass(shape, k));
    if (split && k >= shape.lag(rank)) {
      add(ActionKind::kWeightGrad, BackwardPass(shape, weight_grads++));
    }
  }
  while (split && weight_grads < total) {
    add(ActionKind::kWeightGrad, BackwardPass(shape, weight_grads++));
  }
  return row;
}

}  // namespace

Schedule BuildLoop(std::string_view name, const LoopShape& shape) {
  Schedule schedule{.name = std::string(name),
                    .num_stages = shape.num_ranks * shape.num_chunks,
                    .num_microbatches = shape.num_microbatches,
                    .placement = Placement::kLoop};
  schedule.ranks.reserve(static_cast<std::size_t>(shape.num_ranks));
  for (int rank = 0; rank < shape.num_ranks; ++rank)
    schedule.ranks.push_back(BuildRow(shape, rank));
  return schedule;
}

}  // namespace takt::schedule
