// SPDX-License-Identifier: Apache-2.0
// Reads and writes model.safetensors.index.json, which says which file of a Hugging Face folder
// holds which tensor.
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

// Errors: kInvalidArgument, without the index's own name: it is not a JSON object, lacks weight_map
// or has a key twice, or a file's name is not a string or leads out of the folder. The sizes that
// the file states are not read, since nothing depends on them.
absl::StatusOr<WeightMap> ParseHfIndex(std::string_view text);

// Formats the index as Hugging Face does. total_size: bytes of all tensors.
std::string FormatHfIndex(const WeightMap& weight_map, std::int64_t total_size);

// Returns "model-00001-of-00003.safetensors" for index 0 of 3.
std::string ShardName(std::string_view kind, int index, int count);

}  // namespace takt::checkpoint
