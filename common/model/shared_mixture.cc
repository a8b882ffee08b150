// SPDX-License-Identifier: Apache-2.0
#include "common/model/shared_mixture.h"

#include <algorithm>
#include <cstdint>

#include "common/base/status.h"
#include "common/model/layer_parts.h"
#include "common/model/llama.h"
#include "common/model/mixture.h"
#include "common/model/parts.h"

namespace takt::model {
namespace {

void ShareParameters(Layer& layer, const ModelConfig& config, const ExpertShare& share) {
  const int here = config.mixture->experts / share.size;
  for (Parameter& parameter : layer.parameters) {
    if (parameter.expert < 0) continue;
    parameter.away = parameter.expert / here != share.index;
    // The rows of each rank have a gradient of their own, as they have where nobody shares.
    parameter.split.gradients = share.size;
  }
}

// Makes a list of parts. Of each row or number that the ranks exchange, a rank passes on all but
// its own part.
LayerParts MeetingsOf(const ModelConfig& config, std::int64_t pairs, const ExpertShare& share) {
  const auto exchange = [&](std::int64_t numbers) {
    return Part{.kind = PartKind::kExchange,
                .group = PartGroup::kExpert,
                .bytes = kFloatBytes * numbers / share.size * (share.size - 1)};
  };
  const Part counts = exchange(std::int64_t{share.size} * config.mixture->experts);
  const Part rows = exchange(pairs * config.hidden);
  const Part rows_and_weights = exchange(pairs * (config.hidden + 1));
  LayerParts parts;
  parts.forward = {Part{}, counts, rows_and_weights, Part{}, rows, Part{}};
  parts.input_grad = {rows, Part{}, rows_and_weights, Part{}, rows, Part{}};
  parts.full = {Part{}, counts, rows_and_weights, Part{}};
  return parts;
}

void ShareBlock(Layer& layer, const ModelConfig& config, std::int64_t rows,
                const ExpertShare& share) {
  const Mixture& mixture = *config.mixture;
  const std::int64_t pairs = rows * mixture.chosen;
  const std::int64_t room = RoomForArrivals(rows, mixture.chosen);
  ShareParameters(layer, config, share);
  for (const auto tensor :
       {LlamaBlockStash::kGate, LlamaBlockStash::kUp, LlamaBlockStash::kProduct}) {
    layer.stash[tensor].bytes = kFloatBytes * room * mixture.inner;
    layer.stash[tensor].bf16 = false;  // products round what they read
  }
  layer.stash.push_back(Product("arrived_offsets", share.size, mixture.experts));
  layer.stash.push_back(Product("arrived", room, config.hidden));
  layer.stash.push_back(Product("arrived_weights", room, 1));
  layer.stash.push_back({"arrived_grad", Origin::kInputGrad, kFloatBytes * room * config.hidden});
  layer.scratch[LlamaBlockScratch::kDProduct].bytes = kFloatBytes * room * mixture.inner;
  layer.scratch.push_back({"expert_rows", kFloatBytes * pairs * config.hidden});
  layer.scratch.push_back({"expert_row_weights", kFloatBytes * pairs});
  layer.scratch.push_back({"expert_results", kFloatBytes * room * config.hidden});
  layer.scratch.push_back({"arrived_weights_grad", kFloatBytes * room});
  layer.parts = MeetingsOf(config, pairs, share);
}

}  // namespace

void ShareExperts(Model& model) {
  TAKT_CHECK(model.config.mixture.has_value() && !model.tensor.splits() &&
             model.config.mixture->experts % model.experts.size == 0);
  for (Layer& layer : model.layers) {
    if (HasExperts(layer.kind))
      ShareBlock(layer, model.config, Tokens(model.config, model.microbatch), model.experts);
  }
}

std::int64_t SharingBytes(const Model& model) {
  const bool shares = model.experts.shares() && model.config.mixture.has_value();
  return shares ? kFloatBytes * kExpertSumFloats : 0;
}

std::int64_t MostRowsOfSource(const Model& model) {
  if (!model.experts.shares() || !model.config.mixture.has_value()) return 0;
  const Mixture& mixture = *model.config.mixture;
  const std::int64_t here = mixture.experts / model.experts.size;
  return Tokens(model.config, model.microbatch) * std::min<std::int64_t>(mixture.chosen, here);
}

double SlowestShare(const Model& model, const Layer& layer, double imbalance) {
  if (!model.experts.shares() || !HasExperts(layer.kind)) return 1;
  const auto tokens = static_cast<double>(Tokens(model.config, model.microbatch));
  const double experts = tokens * MixtureFlops(model.config) / layer.cost.forward_flops;
  return 1 + (imbalance - 1) * experts;
}

}  // namespace takt::model
