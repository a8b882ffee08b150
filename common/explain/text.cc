// SPDX-License-Identifier: Apache-2.0
#include "common/explain/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/base/counted.h"

namespace takt::explain {
namespace {

// Removes the sign of a number that rounds to zero.
double Shown(double value, double least) { return std::abs(value) < least ? 0.0 : value; }

// Milliseconds with four significant digits.
std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  const double size = std::abs(ms);
  return absl::StrFormat("%.*f",
                         size >= 1000  ? 0
                         : size >= 100 ? 1
                         : size >= 10  ? 2
                                       : 3,
                         Shown(ms, 0.0005));
}

void AppendParts(const Explanation& explanation, std::string& text) {
  for (int i = 0; i < kNumParts; ++i) {
    const double seconds = explanation.parts[i];
    absl::StrAppendFormat(
        &text, "  %-14s %10s ms %6.1f %%   %s\n", Name(Part(i)), Milliseconds(seconds),
        Shown(100 * seconds / std::max(explanation.step_seconds, 1e-12), 0.05), Meaning(Part(i)));
  }
}

void AppendRanks(const Explanation& explanation, std::string& text) {
  absl::StrAppendFormat(&text, "%-5s%11s%11s%11s%11s |%11s%11s", "rank", "compute", "imbalance",
                        "schedule", "other", "busy", "idle");
  for (int cause = 1; cause <= trace::kNumCauses; ++cause) {
    absl::StrAppendFormat(&text, "%11s", trace::Name(trace::Cause(cause)));
  }
  text += '\n';
  for (std::size_t rank = 0; rank < explanation.ranks.size(); ++rank) {
    const RankSplit& split = explanation.ranks[rank];
    const double own = split.parts[0] + split.parts[1] + split.parts[2];
    double idle = 0;
    for (const double seconds : split.idle_seconds) idle += seconds;
    absl::StrAppendFormat(&text, "%-5d%11s%11s%11s%11s |%11s%11s", rank,
                          Milliseconds(split.parts[0]), Milliseconds(split.parts[1]),
                          Milliseconds(split.parts[2]),
                          Milliseconds(explanation.step_seconds - own),
                          Milliseconds(split.busy_seconds), Milliseconds(idle));
    for (int cause = 1; cause <= trace::kNumCauses; ++cause) {
      absl::StrAppendFormat(&text, "%11s", Milliseconds(split.idle_seconds[cause]));
    }
    text += '\n';
  }
}

}  // namespace

std::string ToString(const Explanation& explanation, const std::vector<Advice>& advice) {
  std::string text =
      absl::StrFormat("step %d took %s ms; bubble %.1f %%", explanation.step.value(),
                      Milliseconds(explanation.step_seconds), 100 * explanation.bubble_fraction);
  if (explanation.predicted_step_seconds.has_value()) {
    absl::StrAppendFormat(&text, " (predicted %s ms, bubble %.1f %%)",
                          Milliseconds(*explanation.predicted_step_seconds),
                          100 * *explanation.predicted_bubble_fraction);
  }
  text += '\n';
  if (explanation.redone_seconds > 0) {
    absl::StrAppendFormat(&text,
                          "before it, forwards ran again for %s ms: step %d was clipped, which was "
                          "not foreseen (optimizer.barrier)\n",
                          Milliseconds(explanation.redone_seconds), explanation.step.value() - 1);
  }
  if (explanation.undone.has_value() && explanation.undone->of > 0) {
    const Undone& undone = *explanation.undone;
    absl::StrAppendFormat(&text, "of %s, ", Counted(undone.of, "recorded step"));
    if (undone.steps == 0) {
      text += "none was undone\n";
    } else {
      absl::StrAppendFormat(&text, "%d %s undone: %s ms in all\n", undone.steps,
                            undone.steps == 1 ? "was" : "were", Milliseconds(undone.seconds));
    }
  }
  AppendParts(explanation, text);
  text +=
      "\nms; left of the bar: the step as above, right: what the compute lane did and waited "
      "for\n";
  AppendRanks(explanation, text);
  if (explanation.worst_op.has_value()) {
    const WorstOp& worst = *explanation.worst_op;
    absl::StrAppendFormat(&text,
                          "\nslowest: %s of stage %d on rank %d, %s ms; mean of all ranks %s "
                          "ms\n",
                          program::Name(worst.op), worst.stage.value(), worst.rank,
                          Milliseconds(worst.seconds), Milliseconds(worst.mean_seconds));
  }
  if (explanation.worst_link.has_value()) {
    const WorstLink& worst = *explanation.worst_link;
    absl::StrAppendFormat(
        &text, "slowest link: rank %d to rank %d, %s ms a message; others %s ms\n", worst.from,
        worst.to, Milliseconds(worst.seconds), Milliseconds(worst.others_seconds));
  }
  for (std::size_t rank = 0; rank < explanation.ranks.size(); ++rank) {
    const double stalled = explanation.ranks[rank].stalled_seconds;
    if (stalled == 0) continue;
    absl::StrAppendFormat(&text, "rank %d's process did not run for %s ms\n", rank,
                          Milliseconds(stalled));
  }
  if (!advice.empty()) text += "\nwould help, as simulated:\n";
  for (const Advice& each : advice) absl::StrAppendFormat(&text, "  %s\n", each.text);
  return text;
}

}  // namespace takt::explain
