// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/decoder.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/model/llama.h"

namespace takt::inference {
namespace {

// This many tokens of a prompt pass the layers together. It is enough for products of matrices to
// be fast, and their activations are small beside the weights.
constexpr std::size_t kTokensAtATime = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const LocalModel& model,
                                                         std::int64_t capacity) {
  TAKT_CHECK(capacity >= 1 && capacity <= model.config().positions);
  auto decoder = std::unique_ptr<Decoder>(new Decoder(model));
  model::ModelConfig config = model.config();
  config.context = static_cast<int>(capacity);
  decoder->rotary_table_ = model::RotaryTable(config);
  RETURN_IF_ERROR(decoder->Allocate(capacity));
  ASSIGN_OR_RETURN(decoder->last_,
                   Pass::Create(model, {.rotary_table = decoder->rotary_table_.data()}));
  decoder->logits_.resize(static_cast<std::size_t>(config.vocab));
  return decoder;
}

absl::Status Decoder::Allocate(std::int64_t capacity) {
  const model::ModelConfig& config = model_.config();
  const int kv_heads = config.family == model::Family::kGpt2 ? config.heads : config.kv_heads;
  const std::int64_t elements = kv_heads * capacity * config.head_size;  // of keys of a block
  const auto bytes = static_cast<std::size_t>(2 * config.layers * elements) * sizeof(float);
  ASSIGN_OR_RETURN(memory_, model_.backend().Allocate(bytes, MemoryKind::kStash));
  float* next = memory_.floats();
  for (int block = 0; block < config.layers; ++block) {
    cache_.blocks.push_back({.keys = next, .values = next + elements});
    next += 2 * elements;
  }
  cache_.capacity = capacity;
  cache_.window = config.attention_window.value_or(0);
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Decoder::Append(std::span<const std::int32_t> tokens) {
  TAKT_CHECK(!tokens.empty() && cache_.past + std::ssize(tokens) <= cache_.capacity);
  RETURN_IF_ERROR(Skip(tokens.first(tokens.size() - 1)));
  constexpr std::int32_t kNoTarget = backend::kIgnoredTarget;
  double loss = 0;
  RETURN_IF_ERROR(
      last_->Run({.tokens = &tokens.back(), .targets = &kNoTarget, .cache = &cache_}, &loss));
  ++cache_.past;
  last_->CopyLogits(0, logits_);
  return logits_;
}

absl::Status Decoder::Skip(std::span<const std::int32_t> tokens) {
  std::unique_ptr<Pass> pass;
  for (std::size_t rows = 0; !tokens.empty(); tokens = tokens.subspan(rows)) {
    const std::size_t before = rows;
    rows = std::min(tokens.size(), kTokensAtATime);
    if (rows != before) {
      ASSIGN_OR_RETURN(pass, Pass::Create(model_, {.rows = static_cast<int>(rows),
                                                   .has_head = false,
                                                   .rotary_table = rotary_table_.data()}));
    }
    RETURN_IF_ERROR(pass->Run({.tokens = tokens.data(), .cache = &cache_}, /*loss_sum=*/nullptr));
    cache_.past += static_cast<std::int64_t>(rows);
  }
  return absl::OkStatus();
}

}  // namespace takt::inference
