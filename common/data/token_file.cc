// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/llmc.h"
#include "common/data/megatron.h"

namespace takt::data {
namespace {

using config::DataFormat;

absl::Status Bad(const TokenFileOptions& options, std::string rule, std::string fix) {
  return InvalidField({.field = options.field,
                       .value = options.path,
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

absl::Status Bad(const TokenFileOptions& options, const absl::Status& status, std::string fix) {
  return Bad(options, std::string(status.message()), std::move(fix));
}

absl::StatusOr<TokenFile> ParseStream(std::span<const std::byte> file, TokenType type,
                                      const TokenFileOptions& options) {
  if (file.size() % WidthOf(type) != 0) {
    return Bad(options,
               absl::StrCat("has ", file.size(), " bytes, which is no whole number of ",
                            NameOf(options.format), " tokens"),
               "check the format, or whether the file is complete");
  }
  // Nothing else in a stream could show that its first 1024 bytes are not tokens.
  if (ParseLlmc(file).ok()) {
    return Bad(options, "is a shard of llm.c: it begins with a header", "use format llmc");
  }
  return TokenFile{.tokens = TokenValues(type, file)};
}

absl::StatusOr<TokenFile> ParseLlmcFile(std::span<const std::byte> file,
                                        const TokenFileOptions& options) {
  const absl::StatusOr<TokenValues> tokens = ParseLlmc(file);
  if (!tokens.ok())
    return Bad(options, tokens.status(), "name a complete token shard of llm.c, or another format");
  return TokenFile{.tokens = *tokens};
}

absl::StatusOr<TokenFile> ParseMegatronFiles(const TokenFileBytes& bytes,
                                             const TokenFileOptions& options) {
  const absl::StatusOr<MegatronData> data = ParseMegatron(bytes.index, bytes.file);
  if (!data.ok())
    return Bad(options, data.status(),
               "use the .idx and the .bin of one run of preprocess_data.py");
  return TokenFile{.tokens = data->tokens, .num_documents = data->num_documents};
}

absl::StatusOr<TokenFile> ParseRows(std::span<const std::byte> file,
                                    const TokenFileOptions& options) {
  const absl::StatusOr<checkpoint::SafetensorsView> view =
      checkpoint::SafetensorsView::Parse(file, options.path);
  if (!view.ok()) {
    return Bad(options, absl::StrCat("is not a safetensors file: ", view.status().message()),
               "check the format");
  }
  const checkpoint::Tensor* tokens = view->Find("tokens");
  const checkpoint::Tensor* targets = view->Find("targets");
  if (tokens == nullptr || targets == nullptr) {
    return Bad(options, "must hold the tensors `tokens` and `targets`", "name such a file");
  }
  const auto& shape = tokens->shape;
  if (tokens->dtype != "I32" || targets->dtype != "I32" || shape != targets->shape ||
      shape.size() < 2 || shape.size() > 3) {
    return Bad(options,
               "`tokens` and `targets` must both be I32 of one shape, [N,T] or [batches,B,T]",
               "write them so");
  }
  TokenFile rows{.tokens = TokenValues(TokenType::kI32, tokens->bytes),
                 .targets = TokenValues(TokenType::kI32, targets->bytes),
                 .row_length = shape.back()};
  for (const auto& [name, values] :
       {std::pair("document", &rows.documents), std::pair("positions", &rows.positions)}) {
    const checkpoint::Tensor* tensor = view->Find(name);
    if (tensor == nullptr) continue;
    if (tensor->dtype != "I32" || tensor->shape != shape) {
      return Bad(options, absl::StrCat("`", name, "` must be I32 of the shape of `tokens`"),
                 "write it so, or leave it out");
    }
    *values = TokenValues(TokenType::kI32, tensor->bytes);
  }
  return rows;
}

absl::StatusOr<TokenFile> ParseByFormat(const TokenFileBytes& bytes,
                                        const TokenFileOptions& options) {
  switch (options.format) {
    case DataFormat::kBytes:
      return ParseStream(bytes.file, TokenType::kU8, options);
    case DataFormat::kUint16:
      return ParseStream(bytes.file, TokenType::kU16, options);
    case DataFormat::kUint32:
      return ParseStream(bytes.file, TokenType::kU32, options);
    case DataFormat::kLlmc:
      return ParseLlmcFile(bytes.file, options);
    case DataFormat::kMegatron:
      return ParseMegatronFiles(bytes, options);
    case DataFormat::kSafetensors:
      break;
  }
  return ParseRows(bytes.file, options);
}

}  // namespace

const char* NameOf(DataFormat format) {
  constexpr const char* kNames[] = {"",     "bytes",    "uint16",     "uint32",
                                    "llmc", "megatron", "safetensors"};
  return kNames[static_cast<int>(format)];
}

absl::StatusOr<TokenFile> ParseTokenFile(const TokenFileBytes& bytes,
                                         const TokenFileOptions& options) {
  const std::string fix = "name a file that holds tokens";
  if (bytes.file.empty()) return Bad(options, "the file is empty", fix);
  ASSIGN_OR_RETURN(TokenFile parsed, ParseByFormat(bytes, options));
  if (parsed.tokens.size() == 0) return Bad(options, "holds no tokens", fix);
  return parsed;
}

}  // namespace takt::data
