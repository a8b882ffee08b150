// SPDX-License-Identifier: Apache-2.0
// Every family over a range of sizes and costs, computed beforehand: what the page of
// `takt schedule show -f html` chooses from.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/base/message_json.h"
#include "cli/schedule/simulated_schedule.h"
#include "common/schedule/schedule.h"

namespace takt::cli {

// {"tick", "costs": [...], "families": [...], "sizes": [[P, M]...], "rows": [...], "entries":
// {...}}: entries by "family P M V" hold, for each of `costs`, makespan, both bubbles, peak,
// messages, bound (null without a flush), time of a step in a row of them and the index of its text
// in `rows`; or the rule that the family breaks at these sizes. A text has a line a rank, an action
// a letter ("FIWB" of the first chunk, "fiwb", "GJXC" and "gjxc" of the next), before it the idle
// ticks if there are any, then `@` and the microbatch if it is not the one after the last of its
// letter; `*` before the two letters of an overlapped pair.
absl::StatusOr<Json> MakeAtlas();

// One schedule with its own times, in the form of an entry and with rows of
// [stage, kind, microbatch, start, end, joins_next].
Json AskedEntry(const schedule::Schedule& schedule, const SimulatedSchedule& simulated);

}  // namespace takt::cli
