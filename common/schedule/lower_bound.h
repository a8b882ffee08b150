// SPDX-License-Identifier: Apache-2.0
// What no schedule of a given size can beat, and why.
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
  // Microbatch-chunks each rank may hold in flight: empty no limit, one entry for all ranks, or one
  // a rank.
  std::vector<int> max_in_flight;
  // Of the message after each stage; empty: 0.
  std::vector<std::int64_t> message_bytes;
};

// What holds the makespan above the mean work of a rank.
enum class Binding : std::uint8_t { kNothing, kFill, kImbalance, kCommunication, kMemory };

// "nothing", "fill", "imbalance", "communication", "memory".
std::string_view BindingName(Binding binding);

struct Bound {
  double makespan = 0;
  // The makespan in parts: the mean work of a rank, and what is added by the order of stages, by
  // their differences, by messages, by the limit of memory, each on top of those before it.
  double work = 0, fill = 0, imbalance = 0, communication = 0, memory = 0;
  Binding binds = Binding::kNothing;  // the largest of the last four
};

// Of the makespan of one step, from the first start to the last end over all ranks. The largest,
// over ranks r and their stages, of
//   fill            r cannot begin before its first input, then it has its work to do;
//   first gradient  until r's first gradient can be there it runs at most K forwards;
//   last gradient   when r's last gradient leaves, at most K of its W remain, and it has to travel
//   to
//                   stage 0;
//   one microbatch  passes all stages forward and back;
//   lifetimes       each of r's chunks is in flight for as long as its gradient is away, at most K
//                   at a time.
// The first three for uniform costs and at most V*M chunks in flight: V*M*(F+I+W) + max(b1, b2, b3)
// with b1 = (P-1)(F+c), b3 = (P-1)(F+I+2c) - (K-1)W, and b2 = V*P*F + (P-1)I + (V*P+P-2)c - K*F
// (loop) or 2P*F + (P-1)(I+3c) - K*F (v). Errors: kInvalidArgument (FieldError): sizes, costs or
// limits that make no sense.
absl::StatusOr<Bound> LowerBound(const BoundInputs& inputs);

}  // namespace takt::schedule
