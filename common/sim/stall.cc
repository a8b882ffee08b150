// SPDX-License-Identifier: Apache-2.0
// Explains a machine that has come to rest with work left: which lanes wait for which.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/program/part_lists.h"
#include "common/sim/machine.h"

namespace takt::sim {

using program::LaneKind;
using program::Program;

std::string Machine::Describe(const LaneState& state) const {
  return absl::StrCat("rank ", state.rank, " ",
                      program::ToString(Next(state), programs_[state.rank]));
}

std::pair<std::string, int> Machine::WaitsFor(int lane) const {
  const LaneState& state = lanes_[lane];
  double unused = 0;
  if (const std::optional<Blocker> blocker = FirstBlocker(state, &unused)) {
    const LaneState& other = lanes_[blocker->lane];
    const Program& program = programs_[state.rank];
    const std::int32_t needed = other.instructions[blocker->position % other.instructions.size()];
    std::string text = absl::StrCat(Describe(state), " waits for ",
                                    program::ToString(program.body[needed], program));
    if (blocker->position != other.num_done) absl::StrAppend(&text, " behind ", Describe(other));
    return {text, blocker->lane};
  }
  if (state.kind == LaneKind::kSend || state.kind == LaneKind::kRecv) {
    const std::string verb = state.kind == LaneKind::kSend ? "take" : "send";
    const bool never = state.partner < 0 || IsDone(lanes_[state.partner]);
    return {absl::StrCat(Describe(state), " waits for rank ", state.peer.value(),
                         never ? ", which will never " : " to ", verb, " it"),
            never ? -1 : state.partner};
  }
  if (state.in_parts) {
    const std::span<const program::Part> parts = PartListOf(Next(state), programs_[state.rank]);
    const program::Part& part = parts[state.part];
    const std::vector<int>& arrived = in_part_.at(KeyOf(state, part));
    for (const int rank : RanksOf(state.rank, part.group)) {
      const int its = lane_begin_[rank] + (lane - lane_begin_[state.rank]);
      if (std::ranges::find(arrived, its) != arrived.end()) continue;
      const bool never = IsDone(lanes_[its]);
      return {absl::StrCat(Describe(state), " ", program::PartName(parts, state.part),
                           " waits for rank ", rank, never ? ", which will never come" : ""),
              never ? -1 : its};
    }
  }
  // In a meeting some rank has not arrived.
  const Meeting& meeting = meetings_.at(KeyOf(state.rank, Next(state)));
  for (const Place& place : meeting.places) {
    const int other = LaneOf(place);
    const LaneState& candidate = lanes_[other];
    const bool here = candidate.posted && NextIndex(candidate) == place.instruction;
    if (IsDone(candidate) || here) continue;
    return {absl::StrCat(Describe(state), " waits for rank ", candidate.rank), other};
  }
  return {absl::StrCat(Describe(state), " waits for a rank that will never come"), -1};
}

Refusal Machine::Stalled() const {
  std::vector<int> path;
  int lane = 0;
  while (IsDone(lanes_[lane])) ++lane;
  while (lane >= 0 && std::find(path.begin(), path.end(), lane) == path.end()) {
    path.push_back(lane);
    lane = WaitsFor(lane).second;
  }
  // If there is a cycle, only that is told.
  if (lane >= 0) path.erase(path.begin(), std::find(path.begin(), path.end(), lane));
  std::string text;
  for (const int link : path) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", WaitsFor(link).first);
  }
  const LaneState& guilty = lanes_[lane >= 0 ? path.front() : path.back()];
  return {absl::StrCat("the programs never complete: ", text), guilty.rank, NextIndex(guilty)};
}

}  // namespace takt::sim
