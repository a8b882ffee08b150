// SPDX-License-Identifier: Apache-2.0
#include "common/model/mixture.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/f32_range.h"
#include "common/model/layer_parts.h"

namespace takt::model {
namespace {

// These are far beyond any model, and small enough that no product of sizes overflows.
constexpr int kMaxExperts = 4096;
constexpr int kMaxWidth = 1 << 20;
// Rows of a mixture are numbered by integers of 32 bits.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;

// The names of an expert's matrices.
struct ExpertNames {
  const char *mixture, *gate, *up, *down;
};

ExpertNames NamesOf(Family family) {
  if (family == Family::kMixtral) return {"block_sparse_moe.", "w1", "w3", "w2"};
  return {"mlp.", "gate_proj", "up_proj", "down_proj"};
}

// The numbers are integers of 32 bits, which take as many bytes as a float.
StashTensor Integers(std::string_view name, std::int64_t count) { return Product(name, count, 1); }

void CheckDenseBlocks(const ModelConfig& config, FieldRules& rules) {
  const std::vector<int>& blocks = config.mixture->dense_blocks;
  if (blocks.empty()) return;
  const char* const field = "model.experts.dense_blocks";
  if (!rules.Check(config.family == Family::kQwen3Moe, {.field = field,
                                                        .value = absl::StrCat(blocks.front()),
                                                        .rule = "only qwen3_moe has dense blocks",
                                                        .fix = "remove it"})) {
    return;
  }
  const bool ascending =
      std::ranges::adjacent_find(blocks, std::ranges::greater_equal()) == blocks.end();
  rules.Check(
      ascending && blocks.front() >= 0 && blocks.back() < config.layers,
      {.field = field,
       .value = absl::StrCat(blocks.front(), " to ", blocks.back()),
       .rule = absl::StrCat("must be ascending numbers of blocks, 0 to ", config.layers - 1),
       .fix = "correct the list"});
}

}  // namespace

void AddMixtureStash(std::vector<StashTensor>& stash, const ModelConfig& config,
                     std::int64_t rows) {
  const Mixture& mixture = *config.mixture;
  const std::int64_t pairs = rows * mixture.chosen;
  stash.push_back(Product("router_logits", rows, mixture.experts));
  stash.push_back(Integers("choices", pairs));
  stash.push_back(Product("router_weights", rows, mixture.chosen));
  stash.push_back(Integers("expert_offsets", mixture.experts + 1));
  stash.push_back(Integers("expert_pairs", pairs));
}

void AddMixtureParameters(std::vector<Parameter>& parameters, const ModelConfig& config,
                          const std::string& prefix) {
  const Mixture& mixture = *config.mixture;
  const ExpertNames names = NamesOf(config.family);
  const std::int64_t c = config.hidden, f = mixture.inner;
  const std::string start = prefix + names.mixture;
  Parameter router = Normal(start + "gate.weight", {mixture.experts, c}, config.initializer_range);
  router.multiplies_in_f32 = true;
  parameters.push_back(std::move(router));
  for (int e = 0; e < mixture.experts; ++e) {
    const std::string expert = absl::StrCat(start, "experts.", e, ".");
    const auto add = [&](const char* name, std::int64_t out, std::int64_t in) {
      parameters.push_back(
          Normal(absl::StrCat(expert, name, ".weight"), {out, in}, config.initializer_range));
      parameters.back().expert = e;
    };
    add(names.gate, f, c);
    add(names.up, f, c);
    add(names.down, c, f);
  }
  if (mixture.scores != RouterScores::kSigmoid) return;
  Parameter bias = Zeros(start + "gate.e_score_correction_bias", mixture.experts);
  bias.balances = true;
  parameters.push_back(std::move(bias));
}

double MixtureFlops(const ModelConfig& config) {
  const Mixture& mixture = *config.mixture;
  const auto c = static_cast<double>(config.hidden);
  return 6.0 * mixture.chosen * c * mixture.inner + 2 * c * mixture.experts;
}

void CheckMixture(const ModelConfig& config, FieldRules& rules) {
  if (!HasExperts(config.family)) {
    if (config.mixture.has_value()) {
      rules.Check(false, {.field = "model.experts",
                          .rule = "only mixtral and qwen3_moe have experts",
                          .fix = "remove it, or change model.family"});
    }
    return;
  }
  if (!rules.Check(config.mixture.has_value(),
                   {.field = "model.experts",
                    .rule = "is missing",
                    .fix = "give count and per_token, e.g. {count: 8, per_token: 2}"})) {
    return;
  }
  const Mixture& mixture = *config.mixture;
  rules.Between("model.experts.count", mixture.experts, 1, kMaxExperts);
  rules.Between("model.experts.inner", mixture.inner, 1, kMaxWidth);
  rules.Check(
      mixture.chosen >= 1 && mixture.chosen <= mixture.experts,
      {.field = "model.experts.per_token",
       .value = absl::StrCat(mixture.chosen),
       .rule = absl::StrCat("must be between 1 and model.experts.count (", mixture.experts, ")"),
       .fix = "correct one of them"});
  rules.Check(
      std::int64_t{config.context} * mixture.chosen <= kMaxRows,
      {.field = "model.experts.per_token",
       .value = absl::StrCat(mixture.chosen),
       .rule = absl::StrCat("x model.context (", config.context, ") must be at most ", kMaxRows),
       .fix = "train on shorter sequences"});
  rules.Check(IsFiniteInF32(mixture.auxiliary_loss) && mixture.auxiliary_loss >= 0,
              {.field = "model.experts.auxiliary_loss",
               .value = absl::StrCat(mixture.auxiliary_loss),
               .rule = WithF32Bound("must be a finite number, 0 or more", mixture.auxiliary_loss),
               .fix = "correct it, e.g. 0.01"});
  rules.Check(IsFiniteInF32(mixture.bias_rate) && mixture.bias_rate >= 0,
              {.field = "model.experts.bias_rate",
               .value = absl::StrCat(mixture.bias_rate),
               .rule = WithF32Bound("must be a finite number, 0 or more", mixture.bias_rate),
               .fix = "correct it, e.g. 0.001"});
  rules.Check(config.family == Family::kQwen3Moe || mixture.normalised,
              {.field = "model.experts.normalize",
               .value = "false",
               .rule = "mixtral divides the weights of a token's experts by their sum",
               .fix = "remove it, or use qwen3_moe"});
  rules.Check(config.family == Family::kQwen3Moe || mixture.inner == config.inner,
              {.field = "model.experts.inner",
               .value = absl::StrCat(mixture.inner),
               .rule = absl::StrCat("must be model.inner (", config.inner,
                                    "), the width of mixtral's experts"),
               .fix = "remove it"});
  CheckDenseBlocks(config, rules);
}

}  // namespace takt::model
