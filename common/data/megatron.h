// SPDX-License-Identifier: Apache-2.0
// Megatron's indexed data sets: PREFIX.bin holds tokens and nothing else, PREFIX.idx says where
// sequences and documents are. docs/data.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/data/token_values.h"

namespace takt::data {

struct MegatronData {
  TokenValues tokens;  // of all sequences, end to end, as they lie in PREFIX.bin
  std::int64_t num_sequences = 0;
  std::int64_t num_documents = 0;
};

// Everything in the index is checked against the data: sequences tile it exactly in their order,
// documents tile the sequences. Errors: kInvalidArgument, a clause about the files.
absl::StatusOr<MegatronData> ParseMegatron(std::span<const std::byte> index,
                                           std::span<const std::byte> data);

}  // namespace takt::data
