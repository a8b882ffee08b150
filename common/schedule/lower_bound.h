// SPDX-License-Identifier: Apache-2.0
// Computes the least time that any schedule of a given size takes, and why.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

struct BoundInputs {
  Placement placement = Placement::kLoop;
  int num_ranks = 1, num_stages = 1, num_microbatches = 1;
  cost::Costs costs;
  // Microbatch-chunks that a rank may hold in flight. Empty: no limit; one entry: the same for all
  // ranks; else one a rank.
  std::vector<int> max_in_flight;
  // The size of the message after each stage; empty: 0.
  std::vector<std::int64_t> message_bytes;
};

// One of these holds the makespan above the mean work of a rank.
enum class Binding : std::uint8_t { kNothing, kFill, kImbalance, kCommunication, kMemory };

// Returns "nothing", "fill", "imbalance", "communication" or "memory".
std::string_view BindingName(Binding binding);

struct Bound {
  double makespan = 0;
  // The makespan in parts: the mean work of a rank, and what the order of stages, their
  // differences, messages and the limit of memory add, each on top of those before it.
  double work = 0, fill = 0, imbalance = 0, communication = 0, memory = 0;
  Binding binds = Binding::kNothing;  // the largest of the last four
};

// A bound of the makespan of one step, from the first start to the last end over all ranks. It is
// the largest, over ranks r and their stages, of
//   fill            r cannot begin before its first input, and then it has its work to do;
//   first gradient  until r's first gradient can be there, r runs at most K forwards;
//   last gradient   when r's last gradient leaves, at most K of r's W remain, and the gradient has
//                   to travel to stage 0;
//   one microbatch  it passes all stages forward and back;
//   lifetimes       each of r's chunks is in flight for as long as its gradient is away, at most K
//                   at a time.
// For uniform costs and at most V*M chunks in flight the first three are V*M*(F+I+W) + max(b1, b2,
// b3) with b1 = (P-1)(F+c), b3 = (P-1)(F+I+2c) - (K-1)W, and b2 = V*P*F + (P-1)I + (V*P+P-2)c - K*F
// (loop) or 2P*F + (P-1)(I+3c) - K*F (v).
// kInvalidArgument (FieldError): the sizes, costs or limits make no sense.
absl::StatusOr<Bound> LowerBound(const BoundInputs& inputs);

}  // namespace takt::schedule
