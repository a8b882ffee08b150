// SPDX-License-Identifier: Apache-2.0
// Explains where the time of a step goes, in seven parts that add up to it exactly. Each part is
// the difference that one change makes when the step's own program is run again with it.
// docs/explain.md has the order of the changes and its reasons.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "common/trace/timeline.h"

namespace takt::explain {

enum class Part : std::uint8_t {
  kCompute = 0,  // the work of all ranks, spread evenly over them
  kImbalance,    // ranks and stages that take longer than the mean
  kSchedule,     // idle time that this schedule has even if all stages are equal and messages free
  kCommunication,  // messages, and meetings inside what is computed
  kData,           // tokens
  kSync,           // sums over ranks: of gradients, of norms
  kRuntime,        // the rest: what the program with its usual costs does not explain
};
inline constexpr int kNumParts = 7;

// Returns "compute", "imbalance", ...: the label `component` of takt_step_component_seconds.
std::string_view Name(Part part);
// Returns one line for people.
std::string_view Meaning(Part part);

// Holds seconds, by Part.
using Parts = std::array<double, kNumParts>;

struct RankSplit {
  // These parts add up to the step too. Work and balance are the rank's own, and what delays all
  // ranks is equal on all.
  Parts parts{};
  // These are measured: how long its compute lane worked in its own step, and how long it was idle,
  // by trace::Cause.
  double busy_seconds = 0;
  std::array<double, trace::kNumCauses + 1> idle_seconds{};
  double stalled_seconds = 0;  // how long its process did not run in the step
};

// The kind of pass of one rank that costs most beyond the mean of its kind. A pair is an F and a B.
struct WorstOp {
  int rank = 0;
  StageId stage{-1};
  program::Op op = program::Op::kForward;
  double seconds = 0, mean_seconds = 0;
};

// The pair of ranks whose messages take longest.
struct WorstLink {
  int from = 0, to = 0;
  double seconds = 0, others_seconds = 0;  // medians: of its messages, of all other links'
};

// How often forwards that had run ahead of a step had to run again, in the steps that were
// recorded.
struct Undone {
  int steps = 0;       // that were undone
  int of = 0;          // steps that are followed by another one that was recorded
  double seconds = 0;  // that it took, in all
};

struct Explanation {
  StepId step;
  double step_seconds = 0;  // measured
  Parts parts{};            // they add up to step_seconds
  std::vector<RankSplit> ranks;
  double bubble_fraction = 0;  // measured: 1 - busy / (ranks * step)
  std::optional<double> predicted_step_seconds, predicted_bubble_fraction;
  std::optional<WorstOp> worst_op;      // unset: no rank is slower than the mean
  std::optional<WorstLink> worst_link;  // unset: there are no messages
  // Measured, and no part of the step: for so long forwards that had run ahead of it ran again,
  // because clipping in the step before was not foreseen. 0: they did not.
  double redone_seconds = 0;
  std::optional<Undone> undone;  // of all steps that were recorded; unset: none runs ahead
};

// Errors: kNotFound: the timeline has no such step.
absl::StatusOr<Explanation> Explain(const trace::Timeline& timeline, StepId step);

}  // namespace takt::explain
