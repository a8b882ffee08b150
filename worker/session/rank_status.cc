// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_status.h"

#include <algorithm>
#include <vector>

namespace takt::session {
namespace {

// Describes what the compute lane does. If it waits for another lane, describes what that one waits
// for, and so on.
void DescribeLanes(const std::vector<engine::LaneStatus>& lanes, const program::Program& program,
                   control::RankStatus& status) {
  const auto compute =
      std::ranges::find(program.lanes, program::LaneKind::kCompute, &program::Lane::kind);
  if (compute == program.lanes.end()) return;
  std::size_t lane = compute - program.lanes.begin();
  status.instruction = lanes[lane].instruction;
  status.instruction_step = lanes[lane].step;
  status.instruction_seconds = static_cast<double>(lanes[lane].nanos) * 1e-9;
  // A chain is never longer than the number of lanes. The limit is needed because lanes move while
  // they are read, so a chain may look like a circle.
  for (std::size_t hops = 0; hops < lanes.size(); ++hops) {
    if (!lanes[lane].waiting_for.empty()) status.waiting_for = lanes[lane].waiting_for;
    if (lanes[lane].waits_for_lane.value() < 0) break;
    lane = lanes[lane].waits_for_lane.value();
  }
  // Receives run ahead of compute. One that failed explains the error even if compute had not
  // reached it yet. One that is open is what this rank needs next.
  const auto failed = std::ranges::find(lanes, true, &engine::LaneStatus::failed);
  if (failed != lanes.end() && !failed->waiting_for.empty())
    status.waiting_for = failed->waiting_for;
  if (!status.waiting_for.empty()) return;
  for (const engine::LaneStatus& receive : lanes) {
    const bool is_receive = program.lanes[receive.lane.value()].kind == program::LaneKind::kRecv;
    if (is_receive && receive.waits_for_lane.value() < 0) status.waiting_for = receive.waiting_for;
  }
}

}  // namespace

void Describe(const engine::Engine& engine, const program::Program& program,
              control::RankStatus& status) {
  DescribeLanes(engine.Status(), program, status);
  status.recent.clear();
  for (const engine::DoneInstruction& done : engine.LastDone(control::kRecentInstructions)) {
    status.recent.push_back(
        {.instruction = done.instruction,
         .step = done.step,
         .seconds = static_cast<double>(done.nanos) * 1e-9,
         .ended_seconds_ago = static_cast<double>(done.ended_nanos_ago) * 1e-9});
  }
}

}  // namespace takt::session
