// SPDX-License-Identifier: Apache-2.0
#include "common/profile/layer_shape.h"

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"

namespace takt::profile {
namespace {

using model::LayerKind;
using model::Precision;

bool IsHead(LayerKind kind) {
  return kind == LayerKind::kGpt2Head || kind == LayerKind::kLlamaHead;
}

const char* KindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kEmbedding:
      return "embedding";
    case LayerKind::kGpt2Block:
      return "gpt2 block";
    case LayerKind::kGpt2Head:
      return "gpt2 head";
    case LayerKind::kLlamaBlock:
      return "llama block";
    case LayerKind::kLlamaHead:
      return "llama head";
    case LayerKind::kQwen3Block:
      return "qwen3 block";
    case LayerKind::kMixtralBlock:
      return "mixtral block";
    case LayerKind::kQwen3MoeBlock:
      return "qwen3_moe block";
    case LayerKind::kEmulated:
      return "emulated";
  }
  return "unknown";
}

const char* PrecisionName(const LayerShape& shape) {
  if (shape.fp8 == model::Fp8Recipe::kTensor) return "fp8 products by tensor";
  if (shape.fp8 == model::Fp8Recipe::kBlock) return "fp8 products by block";
  if (shape.activations == Precision::kBf16) return "bf16";
  return shape.products == Precision::kBf16 ? "bf16 products" : "f32";
}

}  // namespace

LayerShape ShapeOf(const model::Model& model, const model::Layer& layer,
                   model::Recompute recompute) {
  TAKT_CHECK(layer.kind != LayerKind::kEmulated);
  const model::ModelConfig& config = model.config;
  LayerShape shape{.kind = layer.kind,
                   .hidden = config.hidden,
                   .context = config.context,
                   .microbatch = model.microbatch,
                   .products = model.precisions.products,
                   .activations = model.precisions.activations,
                   .tensor = model.tensor.size,
                   .context_ranks = model.context_ranks,
                   .residual = model.precisions.residual};
  if (layer.block >= 0) {
    shape.heads = config.heads;
    shape.kv_heads = config.kv_heads;
    shape.head_size = config.head_size > 0 ? config.head_size : config.hidden / config.heads;
    shape.inner = config.inner;
    shape.recompute = recompute;
    shape.fp8 = model.precisions.fp8;
    shape.attention_window = config.EffectiveWindow();
    if (HasExperts(layer.kind)) {
      shape.inner = config.mixture->inner;
      shape.experts = config.mixture->experts;
      shape.chosen_experts = config.mixture->chosen;
    }
  } else if (IsHead(layer.kind)) {
    shape.vocab = config.vocab;
  }
  return shape;
}

bool HasWords(const model::Layer& layer) {
  return layer.kind == LayerKind::kEmbedding || IsHead(layer.kind);
}

LayerShape ShapeOfWords(const model::Model& model, std::int64_t words) {
  TAKT_CHECK(IsHead(model.layers.back().kind));
  return {.kind = LayerKind::kEmbedding,
          .hidden = model.config.hidden,
          .vocab = static_cast<int>(words),
          .context = model.config.context,
          .microbatch = model.microbatch,
          .products = model.precisions.products,
          .activations = model.precisions.activations,
          .spread = true};
}

Passes WorkOfWords(const model::Model& model, std::int64_t words) {
  TAKT_CHECK(IsHead(model.layers.back().kind));
  const model::LayerCost& head = model.layers.back().cost;
  const double share = static_cast<double>(words) / model.config.vocab;
  return {.forward = head.forward_flops * share,
          .input_grad = (head.input_grad_flops + head.weight_grad_flops) * share,
          .weight_grad = 0};
}

Passes WorkOf(const model::Layer& layer, model::Recompute recompute) {
  const model::LayerCost& cost = layer.cost;
  if (layer.kind == LayerKind::kEmbedding) {
    const auto bytes = static_cast<double>(cost.output_bytes);
    return {.forward = bytes, .input_grad = 0, .weight_grad = bytes};
  }
  return {.forward = cost.forward_flops,
          .input_grad = cost.InputGradFlops(recompute),
          .weight_grad = cost.weight_grad_flops};
}

std::string ToString(const LayerShape& shape) {
  std::string text =
      absl::StrCat(shape.spread ? "vocabulary" : KindName(shape.kind), ", hidden ", shape.hidden);
  if (shape.heads > 0) {
    absl::StrAppend(&text, ", heads ", shape.heads);
    if (shape.kv_heads != shape.heads) absl::StrAppend(&text, " (", shape.kv_heads, " kv)");
    if (shape.head_size * shape.heads != shape.hidden)
      absl::StrAppend(&text, " of ", shape.head_size);
    absl::StrAppend(&text, ", inner ", shape.inner);
  }
  if (shape.experts > 0)
    absl::StrAppend(&text, ", experts ", shape.chosen_experts, " of ", shape.experts);
  if (shape.vocab > 0) absl::StrAppend(&text, ", vocab ", shape.vocab);
  absl::StrAppend(&text, ", context ", shape.context);
  if (shape.attention_window > 0) absl::StrAppend(&text, ", window ", shape.attention_window);
  absl::StrAppend(&text, ", microbatch ", shape.microbatch, ", ", PrecisionName(shape));
  if (shape.recompute != model::Recompute::kNone)
    absl::StrAppend(&text, ", recompute ", std::string(model::Name(shape.recompute)));
  if (shape.tensor > 1) absl::StrAppend(&text, ", tensor ", shape.tensor);
  if (shape.context_ranks > 1)
    absl::StrAppend(&text, ", shared by ", shape.context_ranks, " context ranks");
  if (shape.residual == Precision::kBf16) absl::StrAppend(&text, ", bf16 between layers");
  return text;
}

std::string ToString(const Conditions& conditions) {
  std::string text = conditions.machine;
  if (conditions.threads == 0) return text;
  absl::StrAppend(&text, ", ", Counted(conditions.threads, "thread"), ", ",
                  Counted(conditions.ranks_per_host, "rank"), " on the host");
  return text;
}

}  // namespace takt::profile
