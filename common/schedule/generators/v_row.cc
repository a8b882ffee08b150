// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/v_row.h"

namespace takt::schedule {

VRow::VRow(int num_ranks, int rank, int num_microbatches)
    : down_stage_(rank), up_stage_(2 * num_ranks - 1 - rank), num_microbatches_(num_microbatches) {
  row_.reserve(static_cast<std::size_t>(num_microbatches) * kVPasses);
}

void VRow::Add(VPass pass) {
  const int microbatch = next_[static_cast<int>(pass)]++;
  if (microbatch >= num_microbatches_) return;
  const bool on_down_stage = pass == VPass::kFd || pass == VPass::kIu || pass == VPass::kWu;
  ActionKind kind = ActionKind::kForward;
  if (pass == VPass::kId || pass == VPass::kIu) kind = ActionKind::kInputGrad;
  if (pass == VPass::kWd || pass == VPass::kWu) kind = ActionKind::kWeightGrad;
  row_.push_back(
      {StageId(on_down_stage ? down_stage_ : up_stage_), kind, MicrobatchId(microbatch)});
}

}  // namespace takt::schedule
