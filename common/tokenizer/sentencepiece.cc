// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/sentencepiece.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/tokenizer/sentencepiece_encoder.h"

namespace takt::tokenizer {
namespace {

bool CanBecomeOf(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined ||
         type == PieceType::kUnused;
}

// Returns whether there is a blank after something else in the piece.
bool ReachesOverABlank(std::string_view piece) {
  while (piece.starts_with(kSpaceSymbol)) piece.remove_prefix(kSpaceSymbol.size());
  return piece.find(kSpaceSymbol) != std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Create(
    SentencePieceModel model, std::string_view name) {
  auto kept = std::make_unique<const SentencePieceModel>(std::move(model));
  absl::StatusOr<SentencePieceNormalizer> normalizer = SentencePieceNormalizer::Create(*kept);
  if (!normalizer.ok()) {
    return InvalidField({.field = "normalizer_spec.precompiled_charsmap",
                         .rule = std::string(normalizer.status().message()),
                         .fix = "take the file as `sentencepiece` wrote it",
                         .where = std::string(name)});
  }
  return std::unique_ptr<SentencePieceTokenizer>(
      new SentencePieceTokenizer(std::move(kept), *std::move(normalizer)));
}

SentencePieceTokenizer::SentencePieceTokenizer(std::unique_ptr<const SentencePieceModel> model,
                                               SentencePieceNormalizer normalizer)
    : model_(std::move(model)),
      normalizer_(std::move(normalizer)),
      min_score_(std::numeric_limits<float>::max()),
      // The reference starts from the smallest positive number.
      max_score_(std::numeric_limits<float>::min()) {
  words_are_apart_ = !model_->is_unigram && model_->escape_whitespaces;
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    const SentencePiece& own = piece(id);
    if (CanBecomeOf(own.type)) {
      AddTextPiece(id);
    } else {
      other_ids_.emplace(own.text, id);
    }
    if (own.type == PieceType::kUnknown) unknown_id_ = id;
    if (own.type == PieceType::kNormal) {
      min_score_ = std::min(min_score_, own.score);
      max_score_ = std::max(max_score_, own.score);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = FindToken(PieceOfByte(static_cast<unsigned char>(byte)));
    byte_ids_[static_cast<std::size_t>(byte)] = found.value_or(unknown_id_);
    if (found.has_value()) bytes_by_id_.emplace(*found, static_cast<char>(byte));
  }
}

void SentencePieceTokenizer::AddTextPiece(std::int32_t id) {
  const SentencePiece& own = piece(id);
  text_ids_.emplace(own.text, id);
  if (own.type == PieceType::kUserDefined) user_defined_.Insert(own.text, id);
  if (model_->is_unigram) text_pieces_.Insert(own.text, id);
  // How an unused piece is taken apart again depends on what was merged before, in other words too.
  if (own.type == PieceType::kUnused || ReachesOverABlank(own.text)) words_are_apart_ = false;
}

std::unique_ptr<Encoder> SentencePieceTokenizer::NewEncoder(const EncodeOptions&) const {
  return NewSentencePieceEncoder(*this);
}

std::string SentencePieceTokenizer::Decode(std::span<const std::int32_t> ids) const {
  const bool drops_blank = model_->add_dummy_prefix || model_->remove_extra_whitespaces;
  std::string text;
  bool is_begin = true;  // the blank before the text may still come
  bool dropped = false;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const SentencePiece& own = piece(id);
    if (own.type == PieceType::kByte) {
      const auto byte = bytes_by_id_.find(id);
      if (byte != bytes_by_id_.end()) text += byte->second;
      continue;
    }
    if (dropped || !text.empty()) is_begin = false;
    dropped = false;
    if (own.type == PieceType::kControl) continue;
    if (own.type == PieceType::kUnknown) {
      text += model_->unknown_surface;
      continue;
    }
    std::string_view shown = own.text;
    if (is_begin && drops_blank && shown.starts_with(kSpaceSymbol)) {
      shown.remove_prefix(kSpaceSymbol.size());
      // Where extra blanks are removed, the next piece may lose one too.
      dropped = !model_->remove_extra_whitespaces;
    }
    text +=
        absl::StrReplaceAll(absl::string_view(shown.data(), shown.size()), {{"\xE2\x96\x81", " "}});
  }
  return text;
}

std::optional<std::int32_t> SentencePieceTokenizer::FindText(std::string_view text) const {
  const auto it = text_ids_.find(absl::string_view(text.data(), text.size()));
  if (it == text_ids_.end()) return std::nullopt;
  return it->second;
}

std::optional<std::int32_t> SentencePieceTokenizer::FindToken(std::string_view content) const {
  const auto it = other_ids_.find(absl::string_view(content.data(), content.size()));
  return it == other_ids_.end() ? FindText(content) : it->second;
}

std::optional<std::int32_t> SentencePieceTokenizer::FindControl(const std::string& text) const {
  const auto it = other_ids_.find(text);
  if (it == other_ids_.end() || piece(it->second).type != PieceType::kControl) return std::nullopt;
  return it->second;
}

}  // namespace takt::tokenizer
