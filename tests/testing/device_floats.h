// SPDX-License-Identifier: Apache-2.0
// Fills and reads floats in the memory of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/backend.h"

namespace takt::testing {

// Sets each float of the buffer. Blocks: until that is done.
inline void FillFloats(backend::Backend& backend, const backend::Buffer& buffer, float value) {
  const auto count = static_cast<std::int64_t>(buffer.bytes() / sizeof(float));
  EXPECT_TRUE(
      backend.Run(backend::Fill{.output = buffer.floats(), .value = value, .count = count}).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
}

// Returns all floats of the buffer.
inline std::vector<float> ReadFloats(backend::Backend& backend, const backend::Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  EXPECT_TRUE(backend.CopyToHost(buffer.data(), std::as_writable_bytes(std::span(values))).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  return values;
}

}  // namespace takt::testing
