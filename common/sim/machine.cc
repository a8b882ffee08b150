// SPDX-License-Identifier: Apache-2.0
#include "common/sim/machine.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::sim {

using program::Instruction;
using program::Lane;
using program::LaneKind;
using program::Op;
using program::Program;
using program::Wait;

namespace {

// Ranks of the first and of the last stage: those that share a tied embedding.
int NumTiedRanks(const std::vector<Program>& programs) {
  return static_cast<int>(
      std::count_if(programs.begin(), programs.end(), [](const Program& program) {
        return std::any_of(program.body.begin(), program.body.end(),
                           [&](const Instruction& instruction) {
                             return instruction.op == Op::kForward &&
                                    (instruction.stage == StageId(0) ||
                                     instruction.stage == StageId(program.num_stages - 1));
                           });
      }));
}

}  // namespace

Machine::Machine(const std::vector<Program>& programs, const cost::Costs& costs, int steps)
    : programs_(programs), costs_(costs), steps_(steps) {
  std::map<std::tuple<LaneKind, int, int, program::Direction>, int>
      ends;  // kind, rank, peer, direction
  for (const Program& program : programs) {
    const int rank = program.pp_rank.value();
    waits_.push_back(program::Dependencies(program));
    lane_begin_.push_back(static_cast<int>(lanes_.size()));
    for (std::size_t i = 0; i < program.lanes.size(); ++i) {
      const Lane& lane = program.lanes[i];
      ends[{lane.kind, rank, lane.peer.value(), lane.direction}] = static_cast<int>(lanes_.size());
      LaneState& state = lanes_.emplace_back();
      state.rank = rank;
      state.id = static_cast<std::int32_t>(i);
      state.kind = lane.kind;
    }
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      lanes_[lane_begin_.back() + program.body[i].lane.value()].instructions.push_back(
          static_cast<std::int32_t>(i));
    }
  }
  for (LaneState& state : lanes_) {
    state.starts.reserve(state.instructions.size() * steps);
    state.ends.reserve(state.instructions.size() * steps);
    if (state.kind != LaneKind::kSend && state.kind != LaneKind::kRecv) continue;
    const Lane& lane = programs[state.rank].lanes[state.id];
    const LaneKind opposite = state.kind == LaneKind::kSend ? LaneKind::kRecv : LaneKind::kSend;
    const auto partner = ends.find({opposite, lane.peer.value(), state.rank, lane.direction});
    if (partner != ends.end()) state.partner = partner->second;
  }
  norm_exchange_.num_ranks = static_cast<int>(programs.size());
  tied_.num_ranks = NumTiedRanks(programs);
}

absl::Status Machine::Run() {
  for (int lane = static_cast<int>(lanes_.size()) - 1; lane >= 0; --lane) work_.push_back(lane);
  while (!work_.empty() && mismatch_.ok()) {
    const int lane = work_.back();
    work_.pop_back();
    Advance(lane);
  }
  RETURN_IF_ERROR(mismatch_);
  for (const LaneState& state : lanes_) {
    if (!IsDone(state)) return Stalled();
  }
  return absl::OkStatus();
}

std::vector<Machine::Span> Machine::ComputeSpans(int rank) const {
  std::vector<Span> spans;
  for (std::size_t i = 0; i < programs_[rank].lanes.size(); ++i) {
    const LaneState& state = lanes_[lane_begin_[rank] + i];
    if (state.kind != LaneKind::kCompute) continue;
    for (std::size_t k = 0; k < state.ends.size(); ++k) {
      spans.push_back(
          {state.instructions[k % state.instructions.size()], state.starts[k], state.ends[k]});
    }
  }
  return spans;
}

bool Machine::IsDone(const LaneState& state) const {
  return state.ends.size() == state.instructions.size() * steps_;
}

const Instruction& Machine::Next(const LaneState& state) const {
  return programs_[state.rank]
      .body[state.instructions[state.ends.size() % state.instructions.size()]];
}

const std::vector<Wait>& Machine::NextWaits(const LaneState& state) const {
  return waits_[state.rank][state.instructions[state.ends.size() % state.instructions.size()]];
}

Machine::Meeting* Machine::MeetingOf(Op op) {
  if (op == Op::kNormExchange) return &norm_exchange_;
  if (op == Op::kReduceTied) return &tied_;
  return nullptr;
}

double Machine::Duration(const Instruction& instruction) const {
  switch (instruction.op) {
    case Op::kForward:
      return costs_.F(instruction.stage);
    case Op::kInputGrad:
      return costs_.I(instruction.stage);
    case Op::kWeightGrad:
      return costs_.W(instruction.stage);
    case Op::kBackward:
      return costs_.B(instruction.stage);
    case Op::kOverlap:
      return costs_.O(instruction.stage, instruction.backward_stage);
    case Op::kOptimizer:
      return costs_.optimizer;
    default:
      return 0;
  }
}

std::optional<Machine::Blocker> Machine::FirstBlocker(const LaneState& state,
                                                      double* ready_at) const {
  const std::int64_t step = state.num_done() / static_cast<std::int64_t>(state.instructions.size());
  for (const Wait& wait : NextWaits(state)) {
    const int lane = lane_begin_[state.rank] + wait.lane.value();
    const LaneState& other = lanes_[lane];
    const std::int64_t position =
        step * static_cast<std::int64_t>(other.instructions.size()) + wait.position;
    if (position < 0) continue;  // the first step waits for no previous one
    if (position >= other.num_done()) return Blocker{lane, position};
    *ready_at = std::max(*ready_at, other.ends[position]);
  }
  return std::nullopt;
}

void Machine::Advance(int lane) {
  LaneState& state = lanes_[lane];
  while (!IsDone(state) && !state.posted && mismatch_.ok()) {
    double ready_at = state.free_at;
    const std::optional<Blocker> blocker = FirstBlocker(state, &ready_at);
    if (blocker.has_value()) {
      lanes_[blocker->lane].sleepers.push_back(lane);
      return;
    }
    const Instruction& instruction = Next(state);
    state.ready_at = ready_at;
    if (state.kind == LaneKind::kSend || state.kind == LaneKind::kRecv) {
      state.posted = true;
      AdvanceMessage(lane);
    } else if (Meeting* const meeting = MeetingOf(instruction.op)) {
      state.posted = true;
      AdvanceMeeting(lane, *meeting);
    } else {
      const double end = ready_at + Duration(instruction);
      Complete(lane, ready_at, end, end);
    }
  }
}

void Machine::AdvanceMessage(int lane) {
  LaneState& state = lanes_[lane];
  if (state.partner < 0 || !lanes_[state.partner].posted) return;
  const bool sends = state.kind == LaneKind::kSend;
  const int sender = sends ? lane : state.partner;
  const int receiver = sends ? state.partner : lane;
  const Instruction& sent = Next(lanes_[sender]);
  const Instruction& received = Next(lanes_[receiver]);
  if (sent.stage != received.stage || sent.microbatch != received.microbatch) {
    mismatch_ = absl::InvalidArgumentError(absl::StrCat(
        "messages are not received in the order in which they are sent: ", Describe(lanes_[sender]),
        " meets ", Describe(lanes_[receiver])));
    return;
  }
  const double start = std::max(lanes_[sender].ready_at, lanes_[receiver].ready_at);
  const cost::LinkCost& link =
      costs_.Link(PpRank(lanes_[sender].rank), PpRank(lanes_[receiver].rank));
  const SlotId slot = sent.reads.front();
  const std::int64_t bytes = programs_[lanes_[sender].rank].slots[slot.value()].bytes;
  const double gone = start + link.seconds_per_byte * static_cast<double>(bytes);
  Complete(sender, start, gone, gone);
  Complete(receiver, start, gone + link.latency, gone);
  work_.push_back(state.partner);
}

void Machine::AdvanceMeeting(int lane, Meeting& meeting) {
  meeting.lanes.push_back(lane);
  if (static_cast<int>(meeting.lanes.size()) < meeting.num_ranks) return;
  double latest = 0;
  for (const int arrived : meeting.lanes) latest = std::max(latest, lanes_[arrived].ready_at);
  for (const int arrived : meeting.lanes) {
    Complete(arrived, latest, latest, latest);
    work_.push_back(arrived);
  }
  meeting.lanes.clear();
}

void Machine::Complete(int lane, double start, double end, double free_at) {
  LaneState& state = lanes_[lane];
  state.starts.push_back(start);
  state.ends.push_back(end);
  state.free_at = free_at;
  state.posted = false;
  // Woken lanes look again at all that they need; one that still waits goes back to sleep.
  work_.insert(work_.end(), state.sleepers.begin(), state.sleepers.end());
  state.sleepers.clear();
}

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
    if (blocker->position != other.num_done()) absl::StrAppend(&text, " behind ", Describe(other));
    return {text, blocker->lane};
  }
  if (state.kind == LaneKind::kSend || state.kind == LaneKind::kRecv) {
    const int peer = programs_[state.rank].lanes[state.id].peer.value();
    const std::string_view verb = state.kind == LaneKind::kSend ? "take" : "send";
    if (state.partner < 0 || IsDone(lanes_[state.partner])) {
      return {absl::StrCat(Describe(state), " waits for rank ", peer, ", which will never ",
                           std::string(verb), " it"),
              -1};
    }
    return {
        absl::StrCat(Describe(state), " waits for rank ", peer, " to ", std::string(verb), " it"),
        state.partner};
  }
  // A meeting: some rank has not arrived.
  for (std::size_t other = 0; other < lanes_.size(); ++other) {
    const LaneState& candidate = lanes_[other];
    if (candidate.kind != LaneKind::kReduce || IsDone(candidate) || candidate.posted) continue;
    return {absl::StrCat(Describe(state), " waits for rank ", candidate.rank),
            static_cast<int>(other)};
  }
  return {absl::StrCat(Describe(state), " waits for a rank that will never come"), -1};
}

absl::Status Machine::Stalled() const {
  std::vector<int> path;
  int lane = 0;
  while (IsDone(lanes_[lane])) ++lane;
  while (lane >= 0 && std::find(path.begin(), path.end(), lane) == path.end()) {
    path.push_back(lane);
    lane = WaitsFor(lane).second;
  }
  // Only the cycle, if there is one.
  if (lane >= 0) path.erase(path.begin(), std::find(path.begin(), path.end(), lane));
  std::string text;
  for (const int link : path)
    absl::StrAppend(&text, text.empty() ? "" : "; ", WaitsFor(link).first);
  return absl::InvalidArgumentError(absl::StrCat("the programs never complete: ", text));
}

}  // namespace takt::sim
