// SPDX-License-Identifier: Apache-2.0
// Stands for the weights of a job: a number that each step changes in its own way. A rank that
// does a step twice, leaves one out, or loads another checkpoint than the other ranks has another
// number, and so another loss.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/id.h"
#include "tests/simulation/random.h"

namespace takt::simulation {

inline std::uint64_t InitialState(const std::string& job) {
  std::uint64_t state = 0;
  for (const char c : job) state = Mix(state, static_cast<unsigned char>(c));
  return state;
}

inline std::uint64_t StateAfter(std::uint64_t state, StepId step) {
  return Mix(state, static_cast<std::uint64_t>(step.value()));
}

// Returns the state of a job that did all steps up to this one.
inline std::uint64_t UndisturbedState(const std::string& job, StepId last) {
  std::uint64_t state = InitialState(job);
  for (StepId step(1); step <= last; ++step) state = StateAfter(state, step);
  return state;
}

// All states have different losses, as far as a double holds them.
inline double LossOf(std::uint64_t state) { return static_cast<double>(state >> 11) * 0x1.0p-50; }

}  // namespace takt::simulation
