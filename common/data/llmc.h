// SPDX-License-Identifier: Apache-2.0
// The token shards of llm.c: 256 little-endian i32 (magic, version, tokens, zeros), then the
// tokens.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "common/data/token_values.h"

namespace takt::data {

// Magic 20240520 with version 1 means uint16 (GPT-2); magic 20240801 with version 7 means uint32
// (Llama 3). The file must have exactly the bytes that its header states. Errors: kInvalidArgument,
// a clause about the file.
absl::StatusOr<TokenValues> ParseLlmc(std::span<const std::byte> file);

}  // namespace takt::data
