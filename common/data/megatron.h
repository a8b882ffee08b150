// SPDX-License-Identifier: Apache-2.0
// Megatron's indexed data sets: PREFIX.bin holds only tokens, and PREFIX.idx says where sequences
// and documents are. docs/data.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/data/token_values.h"

namespace takt::data {

struct MegatronData {
  TokenValues tokens;  // tokens of all sequences, end to end as in PREFIX.bin
  std::int64_t num_sequences = 0;
  std::int64_t num_documents = 0;
};

// Checks the whole index against the data: sequences tile the data exactly in their order, and
// documents tile the sequences. Errors: kInvalidArgument, a clause about the files.
absl::StatusOr<MegatronData> ParseMegatron(std::span<const std::byte> index,
                                           std::span<const std::byte> data);

}  // namespace takt::data
