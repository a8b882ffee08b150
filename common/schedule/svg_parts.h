// SPDX-License-Identifier: Apache-2.0
// All our pictures share these: colours of actions, numbers, ticks.
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

// "#7ab0ec". Chunks go from lighter to darker, so that the eye can follow a microbatch through its
// passes, and black labels stay readable.
std::string Fill(const Paint& paint, int chunk, int num_chunks);

// Escapes text that stands between tags.
std::string Escape(std::string_view text);

// A number with two decimals at most, and no zeros at its end. People keep pictures as files, so
// they should be small.
std::string Number(double value);

// Appends a box of that height, in a line of 13 pixels, and its text. Moves `x` to the next entry.
void AppendLegend(double& x, double y, double height, std::string_view fill, std::string_view text,
                  std::string& svg);

// A round number of time units between two ticks, at least 60 pixels apart.
double TickStep(double pixels_per_unit);

}  // namespace takt::schedule
