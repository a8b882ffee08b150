// SPDX-License-Identifier: Apache-2.0
#include "common/model/context_layers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/field_rules.h"
#include "common/model/layer_parts.h"

namespace takt::model {
namespace {

// The pieces that one rank passes on in a meeting, each rank that gets one counted: those of the
// rank that passes on most.
struct PiecesPassed {
  std::int64_t keys = 0, gradients = 0;
};

PiecesPassed MostPassed(const Model& model) {
  const int ranks = model.context_ranks;
  const std::int64_t length = model.context_here() / 2, window = model.config.EffectiveWindow();
  PiecesPassed most;
  for (int rank = 0; rank < ranks; ++rank) {
    const ContextShare here{.size = ranks, .index = rank};
    PiecesPassed its;
    for (int other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      const ContextShare there{.size = ranks, .index = other};
      for (const int half : {0, 1}) {
        its.keys += SeesPiece(there, here.PieceOf(half), length, window) ? 1 : 0;
        its.gradients += SeesPiece(here, there.PieceOf(half), length, window) ? 1 : 0;
      }
    }
    most.keys = std::max(most.keys, its.keys);
    most.gradients = std::max(most.gradients, its.gradients);
  }
  return most;
}

// Returns the numbers of ranks that can share a sequence, of which there may be 4,096.
std::string SizesThatFit(int context) {
  std::string text = "1";
  for (int ranks = 2; ranks <= std::min(context / 2, 4096); ++ranks) {
    if (context % (2 * ranks) == 0) absl::StrAppend(&text, ", ", ranks);
  }
  return text;
}

// Sets the costs of attention, which sees the keys of other ranks too. All ranks have as many pairs
// of a query and a key, except where a window cuts some off.
void CountAttention(const Model& model, LayerCost& cost) {
  ModelConfig here = model.config;
  here.context = static_cast<int>(model.context_here());
  const double more =
      static_cast<double>(model.rows()) * (AttentionFlops(model.config) - AttentionFlops(here));
  cost.forward_flops += more;
  cost.input_grad_flops += 2 * more;
  cost.recompute_flops += more;
}

}  // namespace

std::int64_t KeyColumns(const ModelConfig& config) {
  return std::int64_t{config.kv_heads} * config.head_size;
}

bool SeesPiece(const ContextShare& share, int piece, std::int64_t length, std::int64_t window) {
  for (const int half : {0, 1}) {
    const int own = share.PieceOf(half);
    if (piece > own) continue;
    // The piece's own first query sees the earliest keys.
    const std::int64_t first_key = window == 0 ? 0 : own * length - window + 1;
    if ((piece + 1) * length > first_key) return true;
  }
  return false;
}

std::vector<FieldError> CheckContext(const ModelConfig& config, const TensorShare& tensor,
                                     int context_ranks) {
  FieldRules rules;
  if (context_ranks == 1) return rules.Take();
  const auto refuse_if = [&](bool refused, std::string rule, std::string fix) {
    rules.Check(!refused, {.field = "parallelism.context",
                           .value = absl::StrCat(context_ranks),
                           .rule = std::move(rule),
                           .fix = std::move(fix)});
  };
  if (config.family == Family::kEmulated) {
    refuse_if(true, "emulated layers have no sequences to share", "use 1");
    return rules.Take();
  }
  const bool fits = context_ranks > 1 && config.context % (2 * std::int64_t{context_ranks}) == 0;
  refuse_if(!fits,
            absl::StrCat("makes ", 2 * std::int64_t{context_ranks},
                         " pieces of a sequence, 2 for each rank; they must divide model.context (",
                         config.context, ")"),
            fits ? "" : absl::StrCat("use one of ", SizesThatFit(config.context)));
  refuse_if(HasExperts(config.family), "a router balances experts over whole sequences",
            "use 1, and data for more ranks");
  refuse_if(tensor.splits(), "does not go with tensor and tensor_leaves above 1 yet",
            "use 1 for one of them");
  return rules.Take();
}

void ShareSequences(Model& model) {
  const PiecesPassed passed = MostPassed(model);
  const std::int64_t row_bytes = kFloatBytes * KeyColumns(model.config);
  const std::int64_t all_bytes = Tokens(model.config, model.microbatch) * row_bytes;
  // A piece has half of the rank's rows, and both keys and values pass.
  const std::int64_t piece_bytes = row_bytes * model.rows();
  const auto meeting = [&](std::int64_t pieces) {
    return Part{
        .kind = PartKind::kExchange, .group = PartGroup::kContext, .bytes = pieces * piece_bytes};
  };
  const Part compute{}, keys = meeting(passed.keys), gradients = meeting(passed.gradients);
  for (Layer& layer : model.layers) {
    if (layer.block < 0) continue;
    for (const char* const name : {"keys", "values", "key_grads", "value_grads"})
      layer.scratch.push_back({name, all_bytes});
    layer.parts = {.forward = {compute, keys, compute},
                   .input_grad = {compute, keys, compute, gradients, compute},
                   .full = {compute, keys, compute}};
    CountAttention(model, layer.cost);
  }
}

}  // namespace takt::model
