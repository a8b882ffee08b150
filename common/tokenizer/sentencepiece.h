// SPDX-License-Identifier: Apache-2.0
// The models of SentencePiece, Kudo and Richardson 2018: a text is normalized, then merged by the
// scores of pieces (BPE), or divided into the pieces whose scores have the largest sum (unigram).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/sentencepiece_model.h"
#include "common/tokenizer/sentencepiece_normalizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/trie.h"

namespace takt::tokenizer {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // Errors: kInvalidArgument (FieldError, `where` = `name`): the rules of normalization are
  // malformed.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Create(SentencePieceModel model,
                                                                        std::string_view name);

  std::unique_ptr<Encoder> NewEncoder(const EncodeOptions& options) const override;
  std::string Decode(std::span<const std::int32_t> ids) const override;
  std::int32_t vocab_size() const override {
    return static_cast<std::int32_t>(model_->pieces.size());
  }
  std::optional<std::int32_t> FindToken(std::string_view content) const override;

  // The control pieces that begin and end a document; nullopt: the model has none.
  std::optional<std::int32_t> begin_id() const { return FindControl(model_->begin_piece); }
  std::optional<std::int32_t> end_id() const { return FindControl(model_->end_piece); }

  // Returns what encoders use.
  const SentencePieceModel& model() const { return *model_; }
  const SentencePieceNormalizer& normalizer() const { return normalizer_; }
  const SentencePiece& piece(std::int32_t id) const {
    return model_->pieces[static_cast<std::size_t>(id)];
  }
  // Returns the piece that text can become, or nullopt.
  std::optional<std::int32_t> FindText(std::string_view text) const;
  const Trie& text_pieces() const { return text_pieces_; }    // for unigram
  const Trie& user_defined() const { return user_defined_; }  // for BPE
  std::int32_t unknown_id() const { return unknown_id_; }
  std::int32_t byte_id(char byte) const { return byte_ids_[static_cast<unsigned char>(byte)]; }
  float min_score() const { return min_score_; }
  float max_score() const { return max_score_; }
  // True if no piece reaches over the blank before a word, so that words can be encoded apart.
  bool words_are_apart() const { return words_are_apart_; }

 private:
  SentencePieceTokenizer(std::unique_ptr<const SentencePieceModel> model,
                         SentencePieceNormalizer normalizer);
  void AddTextPiece(std::int32_t id);
  std::optional<std::int32_t> FindControl(const std::string& text) const;

  const std::unique_ptr<const SentencePieceModel> model_;
  const SentencePieceNormalizer normalizer_;                 // borrows *model_
  absl::flat_hash_map<std::string, std::int32_t> text_ids_;  // pieces that text can become
  absl::flat_hash_map<std::string, std::int32_t> other_ids_;
  Trie text_pieces_, user_defined_;
  std::array<std::int32_t, 256> byte_ids_{};
  absl::flat_hash_map<std::int32_t, char> bytes_by_id_;
  std::int32_t unknown_id_ = 0;
  float min_score_, max_score_;  // of normal pieces
  bool words_are_apart_ = true;
};

}  // namespace takt::tokenizer
