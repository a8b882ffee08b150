// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/tokenizer_folder.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/sentencepiece.h"
#include "common/tokenizer/tokenizer_json.h"
#include "nlohmann/json.hpp"

namespace takt::tokenizer {
namespace {

using nlohmann::json;

constexpr char kJsonFile[] = "tokenizer.json", kModelFile[] = "tokenizer.model";

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Returns null if there is no such key.
json ValueIn(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? json() : json(*it);
}

std::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

class FolderReader {
 public:
  FolderReader(const std::string& field, const std::string& folder)
      : field_(field), folder_(folder) {}

  absl::StatusOr<TokenizerFolder> Read() {
    const bool has_json = Exists(PathOf(kJsonFile)), has_model = Exists(PathOf(kModelFile));
    if (!has_json && !has_model) {
      return Unusable("holds neither tokenizer.json nor tokenizer.model",
                      "name a Hugging Face folder with its tokenizer");
    }
    absl::Status status;
    if (has_json) status = ReadJson();
    if (!has_json || (!status.ok() && has_model)) status = ReadModel();
    RETURN_IF_ERROR(status);
    json settings = json::object();
    RETURN_IF_ERROR(ReadSettings("tokenizer_config.json", settings));
    FindBeginOfDocument(settings);
    RETURN_IF_ERROR(FindEndOfDocument(settings));
    return std::move(result_);
  }

 private:
  std::string PathOf(const char* name) const { return absl::StrCat(folder_, "/", name); }

  absl::Status Unusable(std::string rule, std::string fix) const {
    return UnusableField(
        {.field = field_, .value = folder_, .rule = std::move(rule), .fix = std::move(fix)});
  }

  absl::StatusOr<MappedFile> Map(const char* name) const {
    absl::StatusOr<MappedFile> mapped = MappedFile::Open(PathOf(name));
    if (mapped.ok()) return mapped;
    return Unusable(absl::StrCat("cannot be used: ", mapped.status().message()),
                    "make the file readable");
  }

  void Keep(const char* name, const MappedFile& file, std::unique_ptr<const Tokenizer> tokenizer) {
    result_.tokenizer = std::move(tokenizer);
    result_.file = name;
    result_.hash = checkpoint::HashOf(file.bytes());
  }

  absl::Status ReadJson() {
    ASSIGN_OR_RETURN(const MappedFile file, Map(kJsonFile));
    ASSIGN_OR_RETURN(ByteLevelModel model, ParseTokenizerJson(TextOf(file), PathOf(kJsonFile)));
    const std::string begin = model.begin_token;
    Keep(kJsonFile, file, std::make_unique<ByteLevelTokenizer>(std::move(model)));
    if (!begin.empty()) result_.begin_of_document = result_.tokenizer->FindToken(begin);
    return absl::OkStatus();
  }

  absl::Status ReadModel() {
    ASSIGN_OR_RETURN(const MappedFile file, Map(kModelFile));
    ASSIGN_OR_RETURN(SentencePieceModel model,
                     ParseSentencePieceModel(TextOf(file), PathOf(kModelFile)));
    ASSIGN_OR_RETURN(std::unique_ptr<SentencePieceTokenizer> tokenizer,
                     SentencePieceTokenizer::Create(std::move(model), PathOf(kModelFile)));
    result_.begin_of_document = tokenizer->begin_id();
    result_.end_of_document = tokenizer->end_id();
    Keep(kModelFile, file, std::move(tokenizer));
    return absl::OkStatus();
  }

  // Leaves `settings` as they are if there is no such file.
  absl::Status ReadSettings(const char* name, json& settings) const {
    if (!Exists(PathOf(name))) return absl::OkStatus();
    ASSIGN_OR_RETURN(const MappedFile file, Map(name));
    settings = json::parse(TextOf(file), nullptr, /*allow_exceptions=*/false);
    if (settings.is_object()) return absl::OkStatus();
    return InvalidField({.field = field_,
                         .value = PathOf(name),
                         .rule = "must be a JSON object",
                         .fix = "mend the file, or leave it out"});
  }

  // Returns the id of the token that tokenizer_config.json names, or nullopt.
  std::optional<std::int32_t> NamedToken(const json& settings, const char* key) const {
    json token = ValueIn(settings, key);
    if (token.is_object()) token = ValueIn(token, "content");
    if (!token.is_string()) return std::nullopt;
    return result_.tokenizer->FindToken(token.get<std::string>());
  }

  void FindBeginOfDocument(const json& settings) {
    const json adds = ValueIn(settings, "add_bos_token");
    if (!adds.is_boolean()) return;
    if (!adds.get<bool>()) {
      result_.begin_of_document.reset();
    } else if (const auto id = NamedToken(settings, "bos_token")) {
      result_.begin_of_document = id;
    }
  }

  absl::Status FindEndOfDocument(const json& settings) {
    if (const auto id = NamedToken(settings, "eos_token")) result_.end_of_document = id;
    if (result_.end_of_document.has_value()) return absl::OkStatus();
    json config = json::object();
    RETURN_IF_ERROR(ReadSettings("config.json", config));
    json id = ValueIn(config, "eos_token_id");
    if (id.is_array() && !id.empty()) id = json(id.front());
    if (id.is_number_integer() && id.get<std::int64_t>() >= 0 &&
        id.get<std::int64_t>() < result_.tokenizer->vocab_size()) {
      result_.end_of_document = static_cast<std::int32_t>(id.get<std::int64_t>());
    }
    return absl::OkStatus();
  }

  const std::string& field_;
  const std::string& folder_;
  TokenizerFolder result_;
};

}  // namespace

absl::StatusOr<TokenizerFolder> OpenTokenizerFolder(const std::string& field,
                                                    const std::string& folder) {
  return FolderReader(field, folder).Read();
}

}  // namespace takt::tokenizer
