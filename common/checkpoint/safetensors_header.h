// SPDX-License-Identifier: Apache-2.0
// Parses the JSON header of a safetensors file, entry by entry as written. SafetensorsView checks
// how the entries fit together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::checkpoint {

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
};

// Accepts each key once, and entries with exactly dtype, shape and data_offsets of the right types.
// Errors: kInvalidArgument, without the file's name.
absl::StatusOr<Header> ParseHeader(std::string_view json);

}  // namespace takt::checkpoint
