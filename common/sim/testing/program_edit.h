// SPDX-License-Identifier: Apache-2.0
// Lowered programs for tests, and ways to damage them.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "gtest/gtest.h"

namespace takt::sim {

inline std::vector<program::Program> Programs(std::string_view family, int ranks, int microbatches,
                                              const program::LowerOptions& options = {}) {
  const auto schedule =
      schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return program::Lower(*schedule, options).value();
}

// The index of the first instruction that prints so.
inline std::size_t IndexOf(const program::Program& program, std::string_view text) {
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    if (ToString(program.body[i], program) == text) return i;
  }
  ADD_FAILURE() << "no " << std::string(text);
  return 0;
}

inline program::Instruction& Find(program::Program& program, std::string_view text) {
  return program.body[IndexOf(program, text)];
}

inline void Swap(program::Program& program, std::string_view a, std::string_view b) {
  std::swap(Find(program, a), Find(program, b));
}

inline void Erase(program::Program& program, std::string_view text) {
  program.body.erase(program.body.begin() + static_cast<std::ptrdiff_t>(IndexOf(program, text)));
}

inline void Double(program::Program& program, std::string_view text) {
  const std::size_t i = IndexOf(program, text);
  program.body.insert(program.body.begin() + static_cast<std::ptrdiff_t>(i), program.body[i]);
}

}  // namespace takt::sim
