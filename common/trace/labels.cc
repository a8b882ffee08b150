// SPDX-License-Identifier: Apache-2.0
#include "common/trace/labels.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace takt::trace {

std::string RankName(const JobTrace& trace, int rank) {
  if (trace.mesh.num_chains() == 1) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (", mesh::PlaceName(trace.mesh, Rank(rank)), ")");
}

std::vector<LaneId> LanesInOrder(const program::Program& program) {
  std::vector<LaneId> lanes;
  for (std::size_t i = 0; i < program.lanes.size(); ++i) {
    lanes.push_back(LaneId(static_cast<std::int32_t>(i)));
  }
  std::stable_sort(lanes.begin(), lanes.end(), [&](LaneId a, LaneId b) {
    return program.lanes[a.value()].kind < program.lanes[b.value()].kind;
  });
  return lanes;
}

std::string IdleName(const Idle& idle) {
  const absl::string_view name(Name(idle.cause).data(), Name(idle.cause).size());
  return idle.peer < 0 ? std::string(name) : absl::StrCat(name, " ", idle.peer);
}

std::string_view Meaning(Cause cause) {
  constexpr std::string_view kMeanings[] = {
      "",
      "another rank had not come so far",
      "a message was on its way",
      "a sum of gradients, all ranks being there",
      "the exchange of norms, all ranks being there",
      "tokens were not there",
      "all was there: the engine, or a process that did not run",
      "between two steps: validation, a snapshot, the pipeline filling again"};
  return kMeanings[static_cast<int>(cause)];
}

std::string StepsName(const Timeline& timeline) {
  constexpr std::int64_t kMostListed = 8;
  const std::int64_t first = timeline.steps.front().step.value();
  const std::int64_t last = timeline.steps.back().step.value();
  const auto count = static_cast<std::int64_t>(timeline.steps.size());
  if (count == 1) return absl::StrCat("step ", first);
  if (count == last - first + 1) return absl::StrCat("steps ", first, " to ", last);
  if (count > kMostListed) return absl::StrCat(count, " steps from ", first, " to ", last);
  const auto append = [](std::string* list, const StepWindow& window) {
    absl::StrAppend(list, window.step.value());
  };
  return absl::StrCat("steps ", absl::StrJoin(timeline.steps, ", ", append));
}

std::string Title(const Timeline& timeline) {
  std::string title = absl::StrCat("job ", timeline.trace->job, ", ", StepsName(timeline));
  if (timeline.clock_error_nanos > 0) {
    absl::StrAppendFormat(&title, ", clocks within %.3g ms",
                          1e-6 * static_cast<double>(timeline.clock_error_nanos));
  }
  return title;
}

}  // namespace takt::trace
