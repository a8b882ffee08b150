// SPDX-License-Identifier: Apache-2.0
// What all our pictures have in common: colours of actions, numbers, ticks.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/schedule/action.h"

namespace takt::schedule {

struct Paint {
  ActionKind kind;
  std::string_view name;  // "F forward"
  int red, green, blue;   // of the middle chunk
};

// One a kind, in the order of legends.
std::span<const Paint> Paints();
const Paint& PaintOf(ActionKind kind);

// "#7ab0ec". Chunks go from lighter to darker: the eye follows a microbatch through its passes, and
// black labels stay readable.
std::string Fill(const Paint& paint, int chunk, int num_chunks);

// For text between tags.
std::string Escape(std::string_view text);

// Two decimals at most, and none that say nothing: pictures are files that people keep.
std::string Number(double value);

// A round number of time units between two ticks, at least 60 pixels apart.
double TickStep(double pixels_per_unit);

}  // namespace takt::schedule
