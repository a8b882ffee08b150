// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/sentencepiece_normalizer.h"

#include <algorithm>

#include "common/tokenizer/utf8.h"

namespace takt::tokenizer {
namespace {

constexpr std::size_t kUnitBytes = sizeof(std::uint32_t);

// Return the parts of a unit of the double array.
bool HasLeaf(std::uint32_t unit) { return ((unit >> 8) & 1U) != 0; }
std::uint32_t ValueOf(std::uint32_t unit) { return unit & ((1U << 31) - 1); }
std::uint32_t LabelOf(std::uint32_t unit) { return unit & ((1U << 31) | 0xFFU); }
std::uint32_t OffsetOf(std::uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }

std::uint32_t ReadU32(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = kUnitBytes; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

}  // namespace

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(
    const SentencePieceModel& model) {
  SentencePieceNormalizer normalizer(model);
  for (const SentencePiece& piece : model.pieces) {
    if (piece.type == PieceType::kUserDefined) normalizer.user_defined_.Insert(piece.text, 0);
  }
  const std::string_view map = model.charsmap;
  if (map.empty()) return normalizer;
  if (map.size() < kUnitBytes) return absl::InvalidArgumentError("has rules without a size");
  const std::size_t size = ReadU32(map);
  if (size % kUnitBytes != 0 || size >= map.size() - kUnitBytes || map.back() != '\0') {
    return absl::InvalidArgumentError("has rules of another size than they state");
  }
  normalizer.rules_ = map.substr(kUnitBytes, size);
  normalizer.replacements_ = map.substr(kUnitBytes + size);
  return normalizer;
}

// Returns 0, which leads nowhere, for an index outside of the array.
std::uint32_t SentencePieceNormalizer::UnitAt(std::uint32_t index) const {
  const std::size_t begin = std::size_t{index} * kUnitBytes;
  return begin + kUnitBytes <= rules_.size() ? ReadU32(rules_.substr(begin, kUnitBytes)) : 0;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::LongestRule(std::string_view text) const {
  Prefix longest;
  std::uint32_t node = OffsetOf(UnitAt(0));
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    const std::uint32_t unit = UnitAt(node);
    // No rule is for a zero byte, which ends keys: 0 would be its label.
    if (byte == 0 || LabelOf(unit) != byte) break;
    node ^= OffsetOf(unit);
    if (!HasLeaf(unit)) continue;
    const std::size_t place = ValueOf(UnitAt(node));
    if (place >= replacements_.size()) break;
    longest.length = i + 1;
    longest.text = replacements_.substr(place, replacements_.find('\0', place) - place);
  }
  return longest;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::NormalizePrefix(
    std::string_view text) const {
  if (!user_defined_.empty()) {
    if (const std::size_t length = user_defined_.LongestKey(text); length > 0) {
      return {.text = text.substr(0, length), .length = length};
    }
  }
  if (!rules_.empty()) {
    if (const Prefix rule = LongestRule(text); rule.length > 0) return rule;
  }
  // A rule may have ended inside a character.
  const std::size_t length = std::min(CharLength(text.front()), text.size());
  return {.text = text.substr(0, length), .length = length};
}

void SentencePieceNormalizer::Normalize(std::string_view text, std::string& normalized) const {
  normalized.clear();
  const bool trims = model_->remove_extra_whitespaces;
  while (trims && !text.empty()) {
    const Prefix prefix = NormalizePrefix(text);
    if (prefix.text != " ") break;
    text.remove_prefix(prefix.length);
  }
  if (text.empty()) return;
  const std::string_view blank = model_->escape_whitespaces ? kSpaceSymbol : " ";
  if (model_->add_dummy_prefix) normalized.append(blank);
  bool after_blank = trims;
  while (!text.empty()) {
    const Prefix prefix = NormalizePrefix(text);
    std::string_view part = prefix.text;
    while (after_blank && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) {
      if (c == ' ') {
        normalized.append(blank);
      } else {
        normalized += c;
      }
    }
    if (trims && !part.empty()) after_blank = part.back() == ' ';
    text.remove_prefix(prefix.length);
  }
  while (trims && std::string_view(normalized).ends_with(blank)) {
    normalized.resize(normalized.size() - blank.size());
  }
}

}  // namespace takt::tokenizer
