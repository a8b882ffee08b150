// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: which of a Hugging Face folder's files holds which tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace takt::checkpoint {

inline constexpr char kWeightsFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

using WeightMap = std::map<std::string, std::string>;  // name of a tensor to name of its file

// Errors: kInvalidArgument, without the index's own name: not a JSON object, no weight_map, a key
// given twice, a file's name that is no string or leads out of the folder. The sizes that the file
// states are not read: nothing depends on them.
absl::StatusOr<WeightMap> ParseHfIndex(std::string_view text);

// As Hugging Face writes it. total_size: bytes of all tensors.
std::string FormatHfIndex(const WeightMap& weight_map, std::int64_t total_size);

// "model-00001-of-00003.safetensors"; index from 0.
std::string ShardName(std::string_view kind, int index, int count);

}  // namespace takt::checkpoint
