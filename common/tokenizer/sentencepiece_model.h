// SPDX-License-Identifier: Apache-2.0
// Reads the files of SentencePiece (tokenizer.model), which are serialized protobuf messages
// (sentencepiece_model.proto of that project).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::tokenizer {

// The numbers are those of the file.
enum class PieceType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct SentencePieceModel {
  bool is_unigram = true;  // else BPE
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::string charsmap;  // rules of normalization (sentencepiece_normalizer.h); empty: none
  std::string begin_piece = "<s>";
  std::string end_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";  // the text of the unknown piece
  std::vector<SentencePiece> pieces;               // by id
};

// Checks what the reference checks: there is one unknown piece, no piece is empty or given twice,
// and with byte_fallback there is a piece for each byte. Errors: kInvalidArgument (FieldError,
// `where` = `name`): the file is malformed, or its kind is not supported (words, characters, blanks
// as suffixes, a denormalizer).
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(std::string_view file,
                                                           std::string_view name);

// Returns the piece that stands for a byte: "<0x0A>".
std::string PieceOfByte(unsigned char byte);

}  // namespace takt::tokenizer
