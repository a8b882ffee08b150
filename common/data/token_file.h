// SPDX-License-Identifier: Apache-2.0
// What one token file holds, whatever its format. docs/data.md has the layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/data/token_values.h"

namespace takt::data {

const char* NameOf(config::DataFormat format);  // as job files write it

struct TokenFile {
  TokenValues tokens;
  // Of the formats made of rows; streams have none: their targets are their own next tokens.
  TokenValues targets;
  std::int64_t row_length = 0;                // 0: a stream, in which windows lie end to end
  std::optional<std::int64_t> num_documents;  // where the format knows
};

struct TokenFileBytes {
  std::span<const std::byte> file;
  std::span<const std::byte> index;  // of megatron: PREFIX.idx
};

struct TokenFileOptions {
  config::DataFormat format = config::DataFormat::kBytes;
  std::string field = "data.train.path";  // for errors
  std::string path;                       // for errors
};

// Borrows the bytes. Errors: kInvalidArgument (FieldError): a file that is empty, malformed,
// truncated or obviously of another format. Token ids are not looked at.
absl::StatusOr<TokenFile> ParseTokenFile(const TokenFileBytes& bytes,
                                         const TokenFileOptions& options);

}  // namespace takt::data
