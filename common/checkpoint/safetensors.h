// SPDX-License-Identifier: Apache-2.0
// Reads and writes the safetensors format: u64 header length N, N bytes of JSON, then the tensors'
// bytes without holes; little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::checkpoint {

struct Tensor {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I32", ..., as in the file; the format knows it
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // in C order; borrowed; need not be aligned
};

// A parsed file. Borrows the bytes it was made from.
class SafetensorsView {
 public:
  // Checks everything that the format requires: lengths, keys given once, known dtypes, shapes that
  // agree with their bytes (without overflow), tensors that tile the rest of the file exactly.
  // Errors: kInvalidArgument "NAME: ...", which names the tensor.
  static absl::StatusOr<SafetensorsView> Parse(std::span<const std::byte> file,
                                               std::string_view name);

  // The tensors in the order of the file.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Returns nullptr if there is none of that name. Valid as long as this object.
  const Tensor* Find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Sorts as the reference implementation does (larger types first, then by name), so that the same
// tensors always give the same bytes.
void SortTensors(std::vector<Tensor>& tensors);

// Returns the first bytes of a file, after which the bytes of `tensors` follow in this order.
// Precondition: names differ; dtypes are known and agree with shapes and bytes.
std::string FormatSafetensorsHeader(std::span<const Tensor> tensors,
                                    const std::map<std::string, std::string>& metadata = {});

// Returns a file that holds `tensors`, sorted. The precondition is the same.
std::string FormatSafetensors(std::vector<Tensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace takt::checkpoint
