// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/sentencepiece_model.h"

#include <bit>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/bounded_text.h"
#include "common/base/status.h"

namespace takt::tokenizer {
namespace {

constexpr std::size_t kMaxPieces = std::size_t{1} << 21;

// One field of a message: a number, or bytes.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  std::string_view bytes;
  bool is_bytes = false;
};

// Reads the fields of a message one after the other.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // Returns nullopt at the end, and also where the bytes are no message; see ok().
  std::optional<Field> Next() {
    if (rest_.empty() || !ok_) return std::nullopt;
    const std::uint64_t tag = Varint();
    Field field{.number = tag >> 3};
    switch (tag & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        field.value = Fixed(8);
        break;
      case 2:
        field.is_bytes = true;
        field.bytes = Take(Varint());
        break;
      case 5:
        field.value = Fixed(4);
        break;
      default:
        ok_ = false;
    }
    if (!ok_) return std::nullopt;
    return field;
  }

  bool ok() const { return ok_; }

 private:
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  std::uint64_t Fixed(std::size_t size) {
    const std::string_view bytes = Take(size);
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes[i]);
    }
    return value;
  }
  std::string_view Take(std::uint64_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// Calls `take` on each field. Returns whether the bytes are a message.
template <class Take>
bool ForEachField(std::string_view bytes, Take take) {
  Message message(bytes);
  while (const auto field = message.Next()) take(*field);
  return message.ok();
}

// Has what the file says, before it is judged.
struct Parsed {
  SentencePieceModel model;
  std::uint64_t model_type = 1;
  bool blanks_are_suffixes = false;
  bool has_denormalizer = false;
  bool has_wrong_type = false;  // of a piece
};

bool ReadPiece(std::string_view bytes, Parsed& parsed) {
  SentencePiece piece;
  const bool ok = ForEachField(bytes, [&](const Field& field) {
    if (field.number == 1) piece.text = std::string(field.bytes);
    if (field.number == 2) {
      piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
    }
    if (field.number == 3) {
      parsed.has_wrong_type = parsed.has_wrong_type || field.value < 1 || field.value > 6;
      piece.type = static_cast<PieceType>(field.value);
    }
  });
  parsed.model.pieces.push_back(std::move(piece));
  return ok && parsed.model.pieces.size() <= kMaxPieces;
}

bool ReadTrainerSpec(std::string_view bytes, Parsed& parsed) {
  return ForEachField(bytes, [&](const Field& field) {
    if (field.number == 3) parsed.model_type = field.value;
    if (field.number == 24) parsed.blanks_are_suffixes = field.value != 0;
    if (field.number == 35) parsed.model.byte_fallback = field.value != 0;
    if (field.number == 44) parsed.model.unknown_surface = std::string(field.bytes);
    if (field.number == 46) parsed.model.begin_piece = std::string(field.bytes);
    if (field.number == 47) parsed.model.end_piece = std::string(field.bytes);
  });
}

bool ReadNormalizerSpec(std::string_view bytes, Parsed& parsed) {
  return ForEachField(bytes, [&](const Field& field) {
    if (field.number == 2) parsed.model.charsmap = std::string(field.bytes);
    if (field.number == 3) parsed.model.add_dummy_prefix = field.value != 0;
    if (field.number == 4) parsed.model.remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) parsed.model.escape_whitespaces = field.value != 0;
  });
}

bool ReadDenormalizerSpec(std::string_view bytes, Parsed& parsed) {
  return ForEachField(bytes, [&](const Field& field) {
    if (field.number == 2 && !field.bytes.empty()) parsed.has_denormalizer = true;
  });
}

// Returns nullopt if the bytes are no such message.
std::optional<Parsed> Read(std::string_view file) {
  Parsed parsed;
  bool ok = true;
  const bool whole = ForEachField(file, [&](const Field& field) {
    if (field.number < 1 || field.number > 5) return;
    ok = ok && field.is_bytes;
    if (field.number == 1) ok = ok && ReadPiece(field.bytes, parsed);
    if (field.number == 2) ok = ok && ReadTrainerSpec(field.bytes, parsed);
    if (field.number == 3) ok = ok && ReadNormalizerSpec(field.bytes, parsed);
    if (field.number == 5) ok = ok && ReadDenormalizerSpec(field.bytes, parsed);
  });
  if (!ok || !whole || parsed.model.pieces.empty() || parsed.has_wrong_type) return std::nullopt;
  return parsed;
}

// Returns the rule that the pieces break, or an empty text.
std::string CheckPieces(const SentencePieceModel& model) {
  std::set<std::string_view> known;
  int num_unknown = 0;
  for (const SentencePiece& piece : model.pieces) {
    if (piece.text.empty()) return "must not hold an empty piece";
    if (!known.insert(piece.text).second) {
      return absl::StrCat("holds the piece ",
                          absl::Utf8SafeCHexEscape(std::string(FirstBytes(piece.text, 100))),
                          " twice");
    }
    if (piece.type == PieceType::kUnknown) ++num_unknown;
  }
  if (num_unknown != 1) return absl::StrCat("must hold one unknown piece, not ", num_unknown);
  if (!model.byte_fallback) return "";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string piece = PieceOfByte(static_cast<unsigned char>(byte));
    if (!known.contains(piece)) return absl::StrCat("lacks ", piece, ", although bytes fall back");
  }
  return "";
}

}  // namespace

std::string PieceOfByte(unsigned char byte) { return absl::StrFormat("<0x%02X>", byte); }

absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(std::string_view file,
                                                           std::string_view name) {
  const auto wrong = [name](std::string field, std::string value, std::string rule,
                            std::string fix) {
    return InvalidField({.field = std::move(field),
                         .value = std::move(value),
                         .rule = std::move(rule),
                         .fix = std::move(fix),
                         .where = std::string(name)});
  };
  std::optional<Parsed> parsed = Read(file);
  if (!parsed.has_value()) {
    return wrong("tokenizer.model", "", "is not a model of SentencePiece",
                 "take the file as `sentencepiece` wrote it");
  }
  const std::string other = "use a model of type bpe or unigram";
  if (parsed->model_type != 1 && parsed->model_type != 2) {
    return wrong("trainer_spec.model_type", absl::StrCat(parsed->model_type),
                 "must be 1 (unigram) or 2 (bpe)", other);
  }
  if (parsed->blanks_are_suffixes) {
    return wrong("trainer_spec.treat_whitespace_as_suffix", "true", "is not supported", other);
  }
  if (parsed->has_denormalizer) {
    return wrong("denormalizer_spec", "", "is not supported", other);
  }
  if (const std::string rule = CheckPieces(parsed->model); !rule.empty()) {
    return wrong("pieces", "", rule, "take the file as `sentencepiece` wrote it");
  }
  parsed->model.is_unigram = parsed->model_type == 1;
  return std::move(parsed->model);
}

}  // namespace takt::tokenizer
