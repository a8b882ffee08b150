// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/id.h"
#include "common/model/model.h"
#include "common/program/program.h"

namespace takt::layout {

// The contents of a kTokens slot: the count of scored targets that scales its gradients (i64), then
// by microbatch its tokens, its targets and, where documents are apart, their starts
// (i32, N each).
struct TokenBlock {
  int num_microbatches = 0;  // of the slot: all of a step's, or one
  std::int64_t rows = 0;     // N
  bool has_starts = false;

  std::int64_t parts() const { return has_starts ? 3 : 2; }
  std::int64_t bytes() const { return 8 + num_microbatches * parts() * rows * 4; }

  std::int64_t& scored(std::span<std::byte> block) const {
    return *reinterpret_cast<std::int64_t*>(block.data());
  }
  std::span<std::int32_t> tokens(std::span<std::byte> block, MicrobatchId m) const {
    return Part(block, parts() * m.value());
  }
  std::span<std::int32_t> targets(std::span<std::byte> block, MicrobatchId m) const {
    return Part(block, parts() * m.value() + 1);
  }
  // Returns for each row the position in its sequence at which its document begins; nothing if
  // every sequence is one document.
  std::span<std::int32_t> starts(std::span<std::byte> block, MicrobatchId m) const {
    if (!has_starts) return {};
    return Part(block, parts() * m.value() + 2);
  }

 private:
  std::span<std::int32_t> Part(std::span<std::byte> block, std::int64_t index) const {
    return {reinterpret_cast<std::int32_t*>(block.data() + 8) + index * rows,
            static_cast<std::size_t>(rows)};
  }
};

// A program without a flush has a slot for every microbatch; others have one for the whole step.
inline TokenBlock TokenBlockOf(const model::Model& model, const program::Program& program) {
  return {.num_microbatches = program::IsAsynchronous(program) ? 1 : program.num_microbatches,
          .rows = model.rows(),
          .has_starts = model.separate_documents};
}

}  // namespace takt::layout
