// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/byte_level.h"

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/tokenizer/nfc.h"
#include "common/tokenizer/piece_cache.h"

namespace takt::tokenizer {
namespace {

AddedTokens TokensOf(const ByteLevelModel& model, bool normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : model.added_tokens) {
    if (token.normalized != normalized) continue;
    tokens.push_back(token);
    // Such a token is found in a text that is in this form itself.
    std::string storage;
    if (normalized && model.nfc) {
      tokens.back().content = std::string(ToNfc(token.content, storage));
    }
  }
  return AddedTokens(std::move(tokens));
}

class ByteLevelEncoder final : public Encoder {
 public:
  ByteLevelEncoder(const ByteLevelTokenizer& tokenizer, const EncodeOptions& options)
      : tokenizer_(tokenizer),
        model_(tokenizer.model()),
        options_(options),
        splitter_(model_.patterns),
        merger_(model_.merges) {}

  absl::Status Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    if (text.size() > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("has ", text.size(), " bytes; a text may have ", kMaxTextBytes));
    }
    return ForEachGap(tokenizer_.raw_tokens(), text, ids, [&](std::string_view gap) {
      const std::string_view normalized = model_.nfc ? ToNfc(gap, normalized_) : gap;
      return ForEachGap(tokenizer_.normalized_tokens(), normalized, ids,
                        [&](std::string_view plain) {
                          return splitter_.Split(plain, [&](std::string_view piece) {
                            EncodePiece(piece, ids);
                            return absl::OkStatus();
                          });
                        });
    });
  }

 private:
  // Appends the ids of the tokens in `text`, and calls `encode` on what lies between them.
  absl::Status ForEachGap(const AddedTokens& tokens, std::string_view text,
                          std::vector<std::int32_t>& ids,
                          absl::FunctionRef<absl::Status(std::string_view)> encode) const {
    std::size_t done = 0;
    while (const auto found = tokens.Find(text, done, options_.special_tokens)) {
      RETURN_IF_ERROR(encode(text.substr(done, found->begin - done)));
      ids.push_back(found->id);
      done = found->end;
    }
    return encode(text.substr(done));
  }

  void EncodePiece(std::string_view piece, std::vector<std::int32_t>& ids) {
    if (const auto known = cache_.Find(piece)) {
      ids.insert(ids.end(), known->begin(), known->end());
      return;
    }
    piece_ids_.clear();
    const auto whole = model_.ids_by_bytes.find(absl::string_view(piece.data(), piece.size()));
    if (whole != model_.ids_by_bytes.end()) {
      piece_ids_.push_back(whole->second);
    } else {
      for (const char c : piece) {
        piece_ids_.push_back(model_.byte_ids[static_cast<unsigned char>(c)]);
      }
      merger_.Apply(piece_ids_);
    }
    cache_.Add(piece, piece_ids_);
    ids.insert(ids.end(), piece_ids_.begin(), piece_ids_.end());
  }

  const ByteLevelTokenizer& tokenizer_;
  const ByteLevelModel& model_;
  const EncodeOptions options_;
  Splitter splitter_;
  BpeMerger merger_;
  PieceCache cache_;
  std::string normalized_;
  std::vector<std::int32_t> piece_ids_;
};

}  // namespace

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelModel model)
    : model_(std::move(model)),
      raw_tokens_(TokensOf(model_, false)),
      normalized_tokens_(TokensOf(model_, true)) {}

std::unique_ptr<Encoder> ByteLevelTokenizer::NewEncoder(const EncodeOptions& options) const {
  return std::make_unique<ByteLevelEncoder>(*this, options);
}

std::string ByteLevelTokenizer::Decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocab_size()) text += model_.bytes[static_cast<std::size_t>(id)];
  }
  return text;
}

std::optional<std::int32_t> ByteLevelTokenizer::FindToken(std::string_view content) const {
  const auto it = model_.ids.find(absl::string_view(content.data(), content.size()));
  if (it == model_.ids.end()) return std::nullopt;
  return it->second;
}

}  // namespace takt::tokenizer
