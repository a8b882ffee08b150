// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/loop.h"

#include <algorithm>
#include <utility>

#include "common/schedule/generators/generators.h"

namespace takt::schedule {
namespace {

struct Pass {
  int chunk = 0;
  int microbatch = 0;
};

// Number `k` of the forward sequence.
Pass ForwardPass(const GenerateOptions& sizes, int group, int k) {
  const int group_passes = group * *sizes.num_chunks;
  const int first = k / group_passes * group;
  const int size = std::min(group, sizes.num_microbatches - first);
  const int within = k % group_passes;
  return {within / size, first + within % size};
}

Row BuildRow(const GenerateOptions& sizes, const LoopOrder& order, int rank) {
  const int total = *sizes.num_chunks * sizes.num_microbatches;
  const int warmup = std::min(order.warmup(rank), total);
  const bool split = static_cast<bool>(order.lag);
  Row row;
  row.reserve(static_cast<std::size_t>(total) * (split ? 3 : 2));
  const auto add = [&](ActionKind kind, int k) {
    Pass pass = ForwardPass(sizes, order.group, k);
    if (kind != ActionKind::kForward) pass.chunk = *sizes.num_chunks - 1 - pass.chunk;
    row.push_back(
        {StageId(pass.chunk * sizes.num_ranks + rank), kind, MicrobatchId(pass.microbatch)});
  };
  for (int k = 0; k < warmup; ++k) add(ActionKind::kForward, k);
  int weight_grads = 0;
  for (int k = 0; k < total; ++k) {
    if (warmup + k < total) add(ActionKind::kForward, warmup + k);
    add(split ? ActionKind::kInputGrad : ActionKind::kBackward, k);
    if (split && k >= order.lag(rank)) add(ActionKind::kWeightGrad, weight_grads++);
  }
  while (split && weight_grads < total) add(ActionKind::kWeightGrad, weight_grads++);
  return row;
}

}  // namespace

Schedule BuildLoop(const Family& family, const GenerateOptions& options, LoopOrder order) {
  if (order.group == 0) order.group = options.num_microbatches;
  std::vector<Row> rows;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    rows.push_back(BuildRow(options, order, rank));
  }
  return MakeSchedule(family, options, std::move(rows));
}

}  // namespace takt::schedule
