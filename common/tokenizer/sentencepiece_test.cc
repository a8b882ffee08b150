// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/sentencepiece.h"

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace takt::tokenizer {
namespace {

using testing::HasSubstr;

// Writes messages as protobuf does. All numbers here are below 128.
std::string Bytes(int field, const std::string& bytes) {
  return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string Number(int field, int value) {
  return {static_cast<char>(field << 3), static_cast<char>(value)};
}
std::string Float(int field, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  std::string bytes(1, static_cast<char>(field << 3 | 5));
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 0xFF);
  return bytes;
}
std::string Piece(const std::string& text, float score, PieceType type = PieceType::kNormal) {
  return Bytes(1, Bytes(1, text) + Float(2, score) + Number(3, static_cast<int>(type)));
}

constexpr int kModelType = 3, kUnigram = 1, kBpe = 2, kWord = 3;

std::string Model(int type, const std::string& more = "") {
  return Piece("<unk>", 0, PieceType::kUnknown) + Piece("</s>", 0, PieceType::kControl) +
         Piece("a", -3) + Piece("b", -4) + Piece("ab", -1) + more +
         Bytes(2, Number(kModelType, type));
}

std::vector<std::int32_t> Encode(const std::string& model, std::string_view text) {
  const auto tokenizer =
      SentencePieceTokenizer::Create(ParseSentencePieceModel(model, "m").value(), "m").value();
  std::vector<std::int32_t> ids;
  EXPECT_TRUE(tokenizer->NewEncoder({})->Encode(text, ids).ok());
  return ids;
}

std::string ErrorOf(const std::string& model) {
  return std::string(ParseSentencePieceModel(model, "m").status().message());
}

TEST(SentencePiece, EncodesBothKinds) {
  // The blank before the text is unknown, and so is "c".
  EXPECT_THAT(Encode(Model(kBpe), "abac"), testing::ElementsAre(0, 4, 2, 0));
  EXPECT_THAT(Encode(Model(kUnigram), "abac"), testing::ElementsAre(0, 4, 2, 0));
  EXPECT_THAT(Encode(Model(kUnigram), ""), testing::ElementsAre());
}

TEST(SentencePiece, UnusedPiecesAreTakenApart) {
  const std::string unused = Piece("aba", -0.5F, PieceType::kUnused);
  EXPECT_THAT(Encode(Model(kBpe, unused), "aba"), testing::ElementsAre(0, 4, 2));
  EXPECT_THAT(Encode(Model(kUnigram, unused), "aba"), testing::ElementsAre(0, 4, 2));
}

TEST(SentencePiece, UserDefinedPiecesAreNeverMerged) {
  const std::string defined = Piece("b<", 0, PieceType::kUserDefined);
  EXPECT_THAT(Encode(Model(kBpe, defined), "ab<a"), testing::ElementsAre(0, 2, 5, 2));
}

TEST(SentencePiece, KnowsItsControlPiece) {
  const auto tokenizer =
      SentencePieceTokenizer::Create(ParseSentencePieceModel(Model(kBpe), "m").value(), "m")
          .value();
  EXPECT_EQ(tokenizer->end_id(), 1);
  EXPECT_EQ(tokenizer->FindToken("ab"), 4);
  EXPECT_EQ(tokenizer->Decode(std::vector<std::int32_t>{4, 1, 3, 99, -1}), "abb");
}

TEST(SentencePieceModel, RefusesWhatItCannotRead) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("is not a model of SentencePiece"));
  EXPECT_THAT(ErrorOf("{\"json\": 1}"), HasSubstr("is not a model of SentencePiece"));
  const std::string good = Model(kBpe);
  EXPECT_THAT(ErrorOf(good.substr(0, good.size() - 1)), HasSubstr("is not a model"));
  EXPECT_THAT(ErrorOf(Model(kWord)), HasSubstr("trainer_spec.model_type is 3"));
  EXPECT_THAT(ErrorOf(Model(kBpe, Piece("ab", 0))), HasSubstr("holds the piece ab twice"));
  EXPECT_THAT(ErrorOf(Model(kBpe, Piece("", 0))), HasSubstr("an empty piece"));
  EXPECT_THAT(ErrorOf(Model(kBpe, Piece("u", 0, PieceType::kUnknown))), HasSubstr("not 2"));
  // Field 35 of the trainer's settings is byte_fallback.
  const std::string fallback = std::string("\x98\x02\x01", 3);
  EXPECT_THAT(ErrorOf(Model(kBpe) + Bytes(2, fallback)), HasSubstr("lacks <0x00>"));
}

TEST(SentencePieceModel, RefusesRulesOfAnotherSizeThanTheyState) {
  const std::string rules = Bytes(3, Bytes(2, std::string("\x40\0\0\0xyz", 7)));
  const auto tokenizer = SentencePieceTokenizer::Create(
      ParseSentencePieceModel(Model(kBpe) + rules, "m").value(), "m");
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("another size"));
}

}  // namespace
}  // namespace takt::tokenizer
