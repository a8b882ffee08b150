// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE, the tokenizers of GPT-2, Llama 3 and Qwen: a text is cut by regular expressions,
// and the bytes of each piece are merged.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/tokenizer.h"

namespace takt::tokenizer {

// What a tokenizer.json says (tokenizer_json.h).
struct ByteLevelModel {
  bool nfc = false;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  std::vector<Pattern> patterns;
  std::vector<AddedToken> added_tokens;
  std::array<std::int32_t, 256> byte_ids{};
  BpeMerges merges;
  absl::flat_hash_map<std::string, std::int32_t> ids;           // by content as the file writes it
  absl::flat_hash_map<std::string, std::int32_t> ids_by_bytes;  // if ignore_merges
  std::vector<std::string> bytes;  // by id; empty where there is no token
  std::string begin_token;  // the post-processor puts it before a text; empty: it puts none there
};

class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelModel model);

  std::unique_ptr<Encoder> NewEncoder(const EncodeOptions& options) const override;
  std::string Decode(std::span<const std::int32_t> ids) const override;
  std::int32_t vocab_size() const override {
    return static_cast<std::int32_t>(model_.bytes.size());
  }
  std::optional<std::int32_t> FindToken(std::string_view content) const override;

  const ByteLevelModel& model() const { return model_; }
  const AddedTokens& raw_tokens() const { return raw_tokens_; }
  const AddedTokens& normalized_tokens() const { return normalized_tokens_; }

 private:
  const ByteLevelModel model_;
  const AddedTokens raw_tokens_, normalized_tokens_;
};

}  // namespace takt::tokenizer
