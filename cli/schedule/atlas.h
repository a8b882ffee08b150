// SPDX-License-Identifier: Apache-2.0
// Computes every family over a range of sizes and costs, for the page of `takt schedule show -f
// html`.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/base/message_json.h"
#include "cli/schedule/simulated_schedule.h"
#include "common/schedule/schedule.h"

namespace takt::cli {

// Returns {"tick", "costs": [...], "families": [...], "sizes": [[P, M]...], "rows": [...],
// "entries": {...}}. The key of an entry is "family P M V". An entry is the rule that the family
// breaks at these sizes, or a list with, for each of `costs`: makespan, both bubbles, peak,
// messages, bound (null without a flush), the time of a step in a row of steps, and the index of
// its text in `rows`.
//
// A text has a line for each rank and a letter for each action: "FIWB" for the first chunk, "fiwb",
// "GJXC" and "gjxc" for the next ones. Before the letter stand the idle ticks, if there are any,
// and then `@` and the microbatch, if it is not the one after the last of this letter. `*` stands
// before the two letters of an overlapped pair.
absl::StatusOr<Json> MakeAtlas();

// Returns one schedule with its own times, in the form of an entry, with rows of [stage, kind,
// microbatch, start, end, joins_next].
Json AskedEntry(const schedule::Schedule& schedule, const SimulatedSchedule& simulated);

}  // namespace takt::cli
