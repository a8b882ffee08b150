// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_origin.h"

#include "absl/strings/str_cat.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::data {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;

// Reads a count; an absent one stays as it is. Returns whether it is a count.
bool ReadCount(const json& object, const char* key, std::int64_t& count) {
  const auto it = object.find(key);
  if (it == object.end()) return true;
  if (!it->is_number_integer() || it->get<std::int64_t>() < 0) return false;
  count = it->get<std::int64_t>();
  return true;
}

// Null and an absent one mean that there is none.
bool ReadId(const json& object, const char* key, std::optional<std::int64_t>& id) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return true;
  return ReadCount(object, key, id.emplace());
}

void WriteId(ordered_json& object, const char* key, std::optional<std::int64_t> id) {
  object[key] = id.has_value() ? ordered_json(*id) : ordered_json();
}

bool ReadText(const json& object, const char* key, std::string& text) {
  const auto it = object.find(key);
  if (it == object.end()) return true;
  if (!it->is_string()) return false;
  text = it->get<std::string>();
  return true;
}

}  // namespace

std::string FormatTokenOrigin(const TokenOrigin& origin) {
  ordered_json object;
  object["version"] = kVersion;
  object["tokenizer"] = origin.tokenizer;
  object["tokenizer_xxh3_128"] = origin.tokenizer_hash;
  object["vocab"] = origin.vocab;
  WriteId(object, "begin_of_document", origin.begin_of_document);
  WriteId(object, "end_of_document", origin.end_of_document);
  object["documents"] = origin.documents;
  object["tokens"] = origin.tokens;
  object["bytes"] = origin.bytes;
  object["replaced"] = origin.replaced;
  return object.dump(2) + "\n";
}

absl::StatusOr<TokenOrigin> ParseTokenOrigin(std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("must be a JSON object");
  std::int64_t version = 0;
  if (!ReadCount(object, "version", version) || version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("must be of version ", kVersion));
  }
  TokenOrigin origin;
  const bool ok = ReadText(object, "tokenizer", origin.tokenizer) &&
                  ReadText(object, "tokenizer_xxh3_128", origin.tokenizer_hash) &&
                  ReadCount(object, "vocab", origin.vocab) &&
                  ReadCount(object, "documents", origin.documents) &&
                  ReadCount(object, "tokens", origin.tokens) &&
                  ReadCount(object, "bytes", origin.bytes) &&
                  ReadCount(object, "replaced", origin.replaced) &&
                  ReadId(object, "begin_of_document", origin.begin_of_document) &&
                  ReadId(object, "end_of_document", origin.end_of_document);
  if (!ok) return absl::InvalidArgumentError("has a field of the wrong type");
  return origin;
}

std::string TokenOriginPath(std::string_view token_file) {
  return absl::StrCat(std::string(token_file), ".json");
}

absl::StatusOr<std::optional<TokenOrigin>> ReadTokenOrigin(std::string_view token_file) {
  const std::string path = TokenOriginPath(token_file);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) return std::optional<TokenOrigin>();
  RETURN_IF_ERROR(file.status());
  absl::StatusOr<TokenOrigin> origin =
      ParseTokenOrigin({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (!origin.ok()) return Annotate(origin.status(), path);
  return std::optional<TokenOrigin>(*std::move(origin));
}

absl::StatusOr<std::optional<double>> BytesPerToken(const Corpus& corpus) {
  if (corpus.format() == config::DataFormat::kBytes) return 1;
  double tokens = 0, bytes = 0;
  for (const Corpus::Shard& shard : corpus.shards()) {
    ASSIGN_OR_RETURN(const std::optional<TokenOrigin> origin, ReadTokenOrigin(shard.path));
    if (!origin.has_value()) return std::nullopt;
    const auto num_tokens = static_cast<std::int64_t>(shard.file.tokens.size());
    if (origin->tokens != num_tokens || num_tokens == 0 || origin->bytes <= 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(TokenOriginPath(shard.path), " says that it is of ", origin->tokens,
                       " tokens of ", origin->bytes, " bytes, but the file beside it has ",
                       num_tokens, " tokens; make both again with takt data tokenize"));
    }
    tokens += static_cast<double>(origin->tokens);
    bytes += static_cast<double>(origin->bytes);
  }
  return bytes / tokens;
}

}  // namespace takt::data
