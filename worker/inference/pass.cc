// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/pass.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/mesh/mesh.h"
#include "common/model/vocabulary.h"
#include "worker/train/stash_view.h"

namespace takt::inference {

absl::StatusOr<std::unique_ptr<Pass>> Pass::Create(const LocalModel& local,
                                                   const PassOptions& options) {
  model::ModelConfig config = local.config();
  config.context = options.rows;
  ASSIGN_OR_RETURN(model::Model model, model::BuildModel(config, /*microbatch=*/1));
  auto pass = std::unique_ptr<Pass>(new Pass(std::move(model)));
  pass->has_head_ = options.has_head;
  const auto layers = static_cast<std::int32_t>(pass->model_.layers.size());
  // Nothing is kept for a backward pass, so all layers share the memory of one.
  pass->layout_ = layout::LayOutStage(
      pass->model_, mesh::Stage{.id = StageId(0),
                                .pp_rank = PpRank(0),
                                .first_layer = LayerId(0),
                                .last_layer = LayerId(options.has_head ? layers : layers - 1),
                                .recompute = model::Recompute::kFull});
  const auto allocate = [&](std::int64_t bytes, MemoryKind kind) {
    return local.backend().Allocate(static_cast<std::size_t>(bytes), kind);
  };
  ASSIGN_OR_RETURN(pass->stash_, allocate(pass->layout_.stash_bytes, MemoryKind::kStash));
  ASSIGN_OR_RETURN(pass->scratch_, allocate(pass->layout_.scratch_bytes, MemoryKind::kScratch));
  if (!options.has_head) {
    const std::int64_t elements = std::int64_t{options.rows} * config.hidden;
    ASSIGN_OR_RETURN(pass->output_, allocate(elements * static_cast<std::int64_t>(sizeof(float)),
                                             MemoryKind::kScratch));
  }
  pass->stage_.emplace(train::StageOptions{.model = pass->model_,
                                           .layout = pass->layout_,
                                           .parameters = local.weights(),
                                           .backend = local.backend(),
                                           .scratch = pass->scratch_.data(),
                                           .rotary_table = options.rotary_table});
  return pass;
}

absl::Status Pass::Run(const train::TokenView& view, double* loss_sum) {
  return stage_->Forward(
      {.view = view, .output = has_head_ ? nullptr : output_.floats(), .stash = stash_.data()},
      {.sum = loss_sum, .scale = 1});
}

void Pass::CopyLogits(std::int64_t row, std::span<float> logits) const {
  TAKT_CHECK(has_head_);
  const layout::StageLayout::LayerPlace& head = layout_.layers.back();
  const train::StashView stash(head.stash, {train::SlotRoom(stash_.data()).From(head.kept),
                                            train::SlotRoom(scratch_.data())});
  std::size_t block = 0;
  for (const auto& [first, words] : model::VocabularyBlocks(model_.config.vocab)) {
    const float* const from = stash[model::HeadStash::kLogits + block] + row * words;
    std::copy(from, from + words, logits.begin() + first);
    ++block;
  }
}

}  // namespace takt::inference
