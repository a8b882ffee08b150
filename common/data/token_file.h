// SPDX-License-Identifier: Apache-2.0
// Reads what one token file holds, in any format. docs/data.md has the layouts.
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

const char* NameOf(config::DataFormat format);  // as in job files

struct TokenFile {
  TokenValues tokens;
  // Empty for streams, whose targets are their own next tokens.
  TokenValues targets;
  // Rows that say where documents begin have one of these or both; otherwise they are empty.
  // `documents` are ids that never fall within a row, and `positions` are those of tokens in their
  // documents.
  TokenValues documents, positions;
  std::int64_t row_length = 0;                // 0: a stream, where windows lie end to end
  std::optional<std::int64_t> num_documents;  // set if the format knows them
};

struct TokenFileBytes {
  std::span<const std::byte> file;
  std::span<const std::byte> index;  // PREFIX.idx, for megatron
};

struct TokenFileOptions {
  config::DataFormat format = config::DataFormat::kBytes;
  std::string field = "data.train.path";  // for errors
  std::string path;                       // for errors
};

// Borrows the bytes. Errors: kInvalidArgument (FieldError): the file is empty, malformed, truncated
// or obviously of another format. Token ids are not checked.
absl::StatusOr<TokenFile> ParseTokenFile(const TokenFileBytes& bytes,
                                         const TokenFileOptions& options);

}  // namespace takt::data
