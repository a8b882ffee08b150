// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/tokenizer_json.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/status.h"
#include "common/tokenizer/byte_alphabet.h"
#include "nlohmann/json.hpp"

namespace takt::tokenizer {
namespace {

using nlohmann::json;

// GPT-2's expression, which ByteLevel uses with use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// An id beyond it would be a mistake of the file, and would cost memory for each id below.
constexpr std::int64_t kMaxIds = std::int64_t{1} << 21;

const json* Find(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string TextIn(const json& object, const char* key) {
  const json* value = Find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

bool FlagIn(const json& object, const char* key, bool otherwise) {
  const json* value = Find(object, key);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : otherwise;
}

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) {}

  absl::StatusOr<ByteLevelModel> Read(const json& document) {
    if (!document.is_object()) return Wrong("tokenizer.json", "", "must be a JSON object");
    const json* model = Find(document, "model");
    if (model == nullptr) return Wrong("model", "", "is missing");
    RETURN_IF_ERROR(CheckModel(*model));
    RETURN_IF_ERROR(ReadNormalizer(document));
    RETURN_IF_ERROR(ReadPreTokenizer(document));
    RETURN_IF_ERROR(ReadVocabulary(*model));
    RETURN_IF_ERROR(ReadAddedTokens(document));
    RETURN_IF_ERROR(ReadMerges(*model));
    ReadPostProcessor(document);
    return std::move(model_);
  }

 private:
  absl::Status Wrong(std::string field, std::string_view value, std::string rule) const {
    return InvalidField({.field = std::move(field),
                         .value = absl::Utf8SafeCHexEscape(std::string(FirstBytes(value, 100))),
                         .rule = std::move(rule),
                         .fix = "take the file as `tokenizers` wrote it",
                         .where = name_});
  }
  absl::Status Unsupported(std::string field, std::string_view value,
                           std::string_view taken) const {
    return InvalidField({.field = std::move(field),
                         .value = absl::Utf8SafeCHexEscape(std::string(FirstBytes(value, 100))),
                         .rule = absl::StrCat("is not supported, and would change the ids; Takt "
                                              "takes ",
                                              std::string(taken)),
                         .fix = "use a byte-level BPE tokenizer, such as those of GPT-2, Llama 3 "
                                "and Qwen, or tokenizer.model if the model has one",
                         .where = name_});
  }

  absl::Status CheckModel(const json& model) const {
    const std::string type = TextIn(model, "type");
    // Old files do not name the type.
    if (type != "BPE" && !(type.empty() && Find(model, "merges") != nullptr)) {
      return Unsupported("model.type", type, "BPE");
    }
    if (const json* dropout = Find(model, "dropout");
        dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
      return Unsupported("model.dropout", dropout->dump(), "none");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json* value = Find(model, key);
      if (value != nullptr && !(value->is_string() && value->get<std::string>().empty())) {
        return Unsupported(absl::StrCat("model.", key), value->dump(), "none");
      }
    }
    if (FlagIn(model, "byte_fallback", false)) {
      return Unsupported("model.byte_fallback", "true", "false: such models are SentencePiece's");
    }
    return absl::OkStatus();
  }

  absl::Status ReadNormalizer(const json& document) {
    const json* normalizer = Find(document, "normalizer");
    if (normalizer == nullptr) return absl::OkStatus();
    std::vector<const json*> parts = {normalizer};
    if (TextIn(*normalizer, "type") == "Sequence") {
      parts.clear();
      const json* list = Find(*normalizer, "normalizers");
      if (list == nullptr || !list->is_array()) {
        return Wrong("normalizer.normalizers", "", "must be a list");
      }
      for (const json& part : *list) parts.push_back(&part);
    }
    for (const json* part : parts) {
      const std::string type = TextIn(*part, "type");
      if (type != "NFC") return Unsupported("normalizer.type", type, "NFC and none");
      model_.nfc = true;
    }
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer(const json& document) {
    const json* pre_tokenizer = Find(document, "pre_tokenizer");
    if (pre_tokenizer == nullptr) return Unsupported("pre_tokenizer", "null", "ByteLevel");
    std::vector<const json*> parts = {pre_tokenizer};
    if (TextIn(*pre_tokenizer, "type") == "Sequence") {
      parts.clear();
      const json* list = Find(*pre_tokenizer, "pretokenizers");
      if (list == nullptr || !list->is_array() || list->empty()) {
        return Wrong("pre_tokenizer.pretokenizers", "", "must be a list with entries");
      }
      for (const json& part : *list) parts.push_back(&part);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      RETURN_IF_ERROR(ReadPreTokenizerPart(*parts[i], i + 1 == parts.size()));
    }
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizerPart(const json& part, bool is_last) {
    const std::string type = TextIn(part, "type");
    if ((type == "ByteLevel") != is_last) {
      return Unsupported("pre_tokenizer.type", type, "Split, Digits, and ByteLevel as the last");
    }
    if (type == "ByteLevel") {
      if (FlagIn(part, "add_prefix_space", true)) {
        return Unsupported("pre_tokenizer.add_prefix_space", "true", "false");
      }
      return FlagIn(part, "use_regex", true) ? AddPattern(Pattern::Compile(kGpt2Pattern), "")
                                             : absl::OkStatus();
    }
    if (type == "Digits") {
      const bool single = FlagIn(part, "individual_digits", false);
      return AddPattern(Pattern::Compile(single ? R"(\p{N})" : R"(\p{N}+)"), "");
    }
    if (type != "Split") {
      return Unsupported("pre_tokenizer.type", type, "Split, Digits, and ByteLevel as the last");
    }
    if (const std::string behavior = TextIn(part, "behavior"); behavior != "Isolated") {
      return Unsupported("pre_tokenizer.behavior", behavior, "Isolated");
    }
    if (FlagIn(part, "invert", false)) {
      return Unsupported("pre_tokenizer.invert", "true", "false");
    }
    const json* pattern = Find(part, "pattern");
    if (pattern == nullptr) return Wrong("pre_tokenizer.pattern", "", "is missing");
    if (const std::string regex = TextIn(*pattern, "Regex"); !regex.empty()) {
      return AddPattern(Pattern::Compile(regex), regex);
    }
    const std::string text = TextIn(*pattern, "String");
    return AddPattern(Pattern::CompileLiteral(text), text);
  }

  absl::Status AddPattern(absl::StatusOr<Pattern> pattern, std::string_view shown) {
    if (!pattern.ok()) {
      return Unsupported(
          "pre_tokenizer.pattern", shown,
          absl::StrCat("other expressions: this one ", std::string(pattern.status().message())));
    }
    model_.patterns.push_back(*std::move(pattern));
    return absl::OkStatus();
  }

  // Gives the token its place by id.
  absl::Status AddToken(std::string field, const std::string& token, const json& id) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() >= kMaxIds) {
      return Wrong(std::move(field), token, absl::StrCat("must have an id in 0 .. ", kMaxIds - 1));
    }
    const auto index = static_cast<std::size_t>(id.get<std::int64_t>());
    const auto [it, is_new] = model_.ids.emplace(token, static_cast<std::int32_t>(index));
    if (!is_new && it->second == static_cast<std::int32_t>(index)) return absl::OkStatus();
    if (!is_new) return Wrong(std::move(field), token, "has two ids");
    if (index >= model_.bytes.size()) {
      model_.bytes.resize(index + 1);
      is_taken_.resize(index + 1);
    }
    if (is_taken_[index]) {
      return Wrong(std::move(field), token, absl::StrCat("shares id ", index, " with another"));
    }
    is_taken_[index] = true;
    model_.bytes[index] = BytesOfToken(token).value_or(token);
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary(const json& model) {
    const json* vocabulary = Find(model, "vocab");
    if (vocabulary == nullptr || !vocabulary->is_object()) {
      return Wrong("model.vocab", "", "must be an object of tokens and ids");
    }
    model_.ignore_merges = FlagIn(model, "ignore_merges", false);
    model_.ids.reserve(vocabulary->size());
    for (const auto& [token, id] : vocabulary->items()) {
      RETURN_IF_ERROR(AddToken("model.vocab", token, id));
      if (!model_.ignore_merges) continue;
      if (const auto bytes = BytesOfToken(token); bytes.has_value() && !bytes->empty()) {
        model_.ids_by_bytes[*bytes] = model_.ids.at(token);
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token = TokenOfByte(static_cast<unsigned char>(byte));
      const auto it = model_.ids.find(token);
      // With all of them every text has ids, and `unk_token` is never needed.
      if (it == model_.ids.end()) {
        return Wrong("model.vocab", token, "must be a token: the vocabulary must have all bytes");
      }
      model_.byte_ids[static_cast<std::size_t>(byte)] = it->second;
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens(const json& document) {
    const json* list = Find(document, "added_tokens");
    if (list == nullptr) return absl::OkStatus();
    if (!list->is_array()) return Wrong("added_tokens", "", "must be a list");
    for (const json& entry : *list) {
      AddedToken token{.content = TextIn(entry, "content"),
                       .special = FlagIn(entry, "special", false),
                       .normalized = FlagIn(entry, "normalized", false)};
      if (token.content.empty()) return Wrong("added_tokens.content", "", "must not be empty");
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (FlagIn(entry, key, false)) {
          return Unsupported(absl::StrCat("added_tokens.", key), token.content, "false");
        }
      }
      const json* id = Find(entry, "id");
      RETURN_IF_ERROR(AddToken("added_tokens.id", token.content, id == nullptr ? json() : *id));
      token.id = model_.ids.at(token.content);
      model_.added_tokens.push_back(std::move(token));
    }
    return absl::OkStatus();
  }

  absl::Status ReadMerges(const json& model) {
    const json* merges = Find(model, "merges");
    if (merges == nullptr || !merges->is_array()) {
      return Wrong("model.merges", "", "must be a list");
    }
    std::int32_t rank = 0;
    for (const json& merge : *merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const std::size_t blank = text.find(' ');
        left = text.substr(0, blank);
        if (blank != std::string::npos) right = text.substr(blank + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      const auto left_id = model_.ids.find(left), right_id = model_.ids.find(right),
                 merged_id = model_.ids.find(absl::StrCat(left, right));
      if (left.empty() || right.empty() || left_id == model_.ids.end() ||
          right_id == model_.ids.end() || merged_id == model_.ids.end()) {
        return Wrong(absl::StrCat("model.merges[", rank, "]"), absl::StrCat(left, " ", right),
                     "must be two tokens that make a third one of the vocabulary");
      }
      model_.merges.Add(left_id->second, right_id->second, {.rank = rank, .id = merged_id->second});
      ++rank;
    }
    return absl::OkStatus();
  }

  // Finds the special token with which the template of a single text begins.
  void ReadPostProcessor(const json& document) {
    const json* processor = Find(document, "post_processor");
    if (processor == nullptr) return;
    const json* list = Find(*processor, "processors");
    const json parts = list != nullptr && list->is_array() ? *list : json::array({*processor});
    for (const json& part : parts) {
      const json* single = Find(part, "single");
      if (TextIn(part, "type") != "TemplateProcessing" || single == nullptr) continue;
      if (!single->is_array() || single->empty()) continue;
      const json* token = Find(single->front(), "SpecialToken");
      if (token != nullptr) model_.begin_token = TextIn(*token, "id");
    }
  }

  const std::string name_;
  ByteLevelModel model_;
  std::vector<bool> is_taken_;  // by id
};

}  // namespace

absl::StatusOr<ByteLevelModel> ParseTokenizerJson(std::string_view text, std::string_view name) {
  return Reader(name).Read(json::parse(text, nullptr, /*allow_exceptions=*/false));
}

}  // namespace takt::tokenizer
