// SPDX-License-Identifier: Apache-2.0
// Records of TensorBoard event files: a takt.v1.TensorboardEvent in a TFRecord, which is
//   uint64 length | uint32 masked CRC-32C of those 8 bytes | data | uint32 masked CRC-32C of data
// little-endian; masked(c) = ((c >> 15) | (c << 17)) + 0xa282ead8 modulo 2^32.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/base/id.h"

namespace takt::tensorboard {

struct Scalar {
  std::string_view tag;  // "train/loss"
  double value = 0;
};

// Returns the first record of a file.
std::string VersionRecord(absl::Time time);
// Returns a record that makes the points of `step` and later steps in other files void.
std::string StartRecord(StepId step, absl::Time time);
std::string ScalarsRecord(StepId step, absl::Time time, std::span<const Scalar> scalars);

}  // namespace takt::tensorboard
