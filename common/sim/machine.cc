// SPDX-License-Identifier: Apache-2.0
#include "common/sim/machine.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/program/part_lists.h"
#include "common/program/remove_barrier.h"

namespace takt::sim {

using program::Direction;
using program::Instruction;
using program::Lane;
using program::LaneKind;
using program::Op;
using program::Part;
using program::PartGroup;
using program::Program;
using program::SlotKind;
using program::Wait;

namespace {

bool IsMessageLane(LaneKind kind) { return kind == LaneKind::kSend || kind == LaneKind::kRecv; }

// The same program with one lane for the messages of both directions to, and one for those from,
// each peer.
Program MergeDirections(Program program) {
  std::vector<Lane> lanes;
  std::vector<LaneId> merged;  // by lane of the program
  for (Lane lane : program.lanes) {
    lane.direction = Direction::kNone;
    const auto same = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& other) {
      return other.kind == lane.kind && other.peer == lane.peer;
    });
    merged.push_back(LaneId(static_cast<std::int32_t>(same - lanes.begin())));
    if (same == lanes.end()) lanes.push_back(lane);
  }
  program.lanes = std::move(lanes);
  for (Instruction& instruction : program.body) instruction.lane = merged[instruction.lane.value()];
  return program;
}

}  // namespace

Machine::Machine(const std::vector<Program>& programs, const cost::Costs& costs,
                 const MachineOptions& options)
    : programs_(programs), costs_(costs), options_(options) {
  for (const Program& program : programs) {
    if (options.one_fifo_per_pair) {
      AddRank(MergeDirections(program));
    } else {
      AddRank(program);
    }
  }
  if (options.meetings != nullptr) {
    for (const Program& program : programs) meetings_at_.push_back(MeetingOffsets(program));
  }
  spans_.resize(num_instructions_ * options.steps);
  PairMessageLanes();
  CountMeetings();
}

void Machine::AddRank(const Program& program) {
  const int rank = program.pp_rank.value();
  const int first_lane = static_cast<int>(lanes_.size());
  waits_.push_back(program::Dependencies(program));
  lane_begin_.push_back(first_lane);
  rank_begin_.push_back(num_instructions_);
  num_instructions_ += program.body.size();
  for (const Lane& lane : program.lanes) {
    LaneState& state = lanes_.emplace_back();
    state.rank = rank;
    state.kind = lane.kind;
    state.peer = lane.peer;
  }
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const int lane = first_lane + program.body[i].lane.value();
    lane_of_.push_back(lane);
    lanes_[lane].instructions.push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t lane = first_lane; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].instructions.empty()) lanes_[lane].step = options_.steps;
  }
}

void Machine::PairMessageLanes() {
  using End = std::tuple<LaneKind, int, int, Direction>;  // kind, rank, peer
  std::map<End, int> ends;
  const auto direction = [&](const LaneState& state) {
    return options_.one_fifo_per_pair ? Direction::kNone : DirectionOf(state);
  };
  const auto is_end = [](const LaneState& state) {
    return IsMessageLane(state.kind) && !state.instructions.empty();
  };
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const LaneState& state = lanes_[i];
    if (!is_end(state)) continue;
    ends[{state.kind, state.rank, state.peer.value(), direction(state)}] = static_cast<int>(i);
  }
  for (LaneState& state : lanes_) {
    if (!is_end(state)) continue;
    const LaneKind opposite = state.kind == LaneKind::kSend ? LaneKind::kRecv : LaneKind::kSend;
    const auto partner = ends.find({opposite, state.peer.value(), state.rank, direction(state)});
    if (partner != ends.end()) state.partner = partner->second;
  }
}

void Machine::CountMeetings() {
  if (SpreadsVocabulary(programs_[0])) {
    // Each copy of the pipeline has one rank with stage 0. The ranks of a copy are so far apart as
    // there are copies (SpreadOverCopies).
    num_copies_ = static_cast<int>(std::count_if(
        programs_.begin(), programs_.end(),
        [](const Program& program) { return HeldStages(program).contains(StageId(0)); }));
    num_copies_ = std::max(num_copies_, 1);
    slowest_link_ = cost::SlowestLink(costs_, static_cast<int>(programs_.size()));
  }
  num_reductions_.assign(programs_[0].num_stages + 1, 0);  // with the rows of the vocabulary
  for (const Program& program : programs_) {
    const int rank = program.pp_rank.value();
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const Instruction& instruction = program.body[i];
      shards_ |= instruction.op == Op::kGatherWeights || instruction.op == Op::kUnshard;
      if (!Meets(instruction)) continue;
      const auto [entry, is_new] = meetings_.try_emplace(KeyOf(rank, instruction));
      entry->second.places.push_back({rank, static_cast<std::int32_t>(i)});
      entry->second.bytes += instruction.bytes;
      // Ranks that share a layer each sum their part of it, beside one another.
      if (is_new && instruction.op == Op::kReduceGrad && rank % options_.tensor == 0)
        ++num_reductions_[instruction.stage.value()];
    }
  }
}

bool Machine::Meets(const Instruction& instruction) const {
  switch (instruction.op) {
    case Op::kNormExchange:
    case Op::kEval:
      return options_.barrier;
    case Op::kReduceTied:
      return instruction.reads.size() == 1;  // else both uses are on this rank
    case Op::kReduceGrad:
    case Op::kGatherWeights:
      return true;
    default:
      return program::IsMeeting(instruction.op);
  }
}

Machine::MeetingKey Machine::KeyOf(int rank, const Instruction& instruction) const {
  MeetingKey key{.op = instruction.op, .layer = instruction.layer};
  key.foreseen = program::GathersForeseen(instruction, programs_[rank]);
  if (program::IsMeeting(instruction.op)) {
    key.microbatch = instruction.microbatch;
    key.step_ahead = instruction.step_ahead;
    key.group = rank % num_copies_;
  } else if ((instruction.op == Op::kReduceGrad || instruction.op == Op::kGatherWeights) &&
             instruction.stage.value() == programs_[0].num_stages) {
    key.group = 1 + rank / num_copies_;
  }
  const bool of_all = instruction.op == Op::kNormExchange || instruction.op == Op::kEval;
  if (!of_all) key.group = key.group * options_.tensor + rank % options_.tensor;
  return key;
}

// Replicas take equally long, so those that share experts come together.
std::vector<int> Machine::RanksOf(int rank, PartGroup group) const {
  if (group == PartGroup::kExpert) return {rank};
  const bool of_context = group == PartGroup::kContext;
  const int size = of_context ? options_.context : options_.tensor;
  const int stride = of_context ? options_.tensor : 1;
  const int first = rank - rank / stride % size * stride;
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

Machine::PartKey Machine::KeyOf(const LaneState& state, const Part& meeting) const {
  const Instruction& instruction = Next(state);
  return {.group = meeting.group,
          .of = RanksOf(state.rank, meeting.group).front(),
          .op = instruction.op,
          .stage = instruction.stage,
          .microbatch = instruction.microbatch,
          .part = state.part};
}

std::optional<Refusal> Machine::Run() {
  for (int lane = static_cast<int>(lanes_.size()) - 1; lane >= 0; --lane) work_.push_back(lane);
  while (!work_.empty() && !mismatch_.has_value()) {
    const int lane = work_.back();
    work_.pop_back();
    Advance(lane);
  }
  if (mismatch_.has_value()) return mismatch_;
  for (const LaneState& state : lanes_) {
    if (!IsDone(state)) return Stalled();
  }
  return std::nullopt;
}

double Machine::Duration(int rank, const Instruction& instruction) const {
  const StageId stage = instruction.stage;
  switch (instruction.op) {
    case Op::kForward:
      return costs_.F(stage);
    case Op::kInputGrad:
      return costs_.I(stage);
    case Op::kWeightGrad:
      return costs_.W(stage) * instruction.num_microbatches;
    case Op::kBackward:
      return costs_.B(stage);
    case Op::kOverlap:
      return costs_.O(stage, instruction.backward_stage);
    case Op::kReduceGrad:
    case Op::kGatherWeights:
      if (stage.value() == programs_[rank].num_stages &&
          static_cast<int>(costs_.reduction.size()) != programs_[rank].num_stages + 1) {
        return 0;  // of rows, whose time is not given
      }
      if (instruction.op == Op::kGatherWeights)
        return costs_.Gather(stage) / num_reductions_[stage.value()];
      return (shards_ ? costs_.ReduceScatter(stage) : costs_.Reduction(stage)) /
             num_reductions_[stage.value()];
    case Op::kUnshard:  // of all layers; the replicas that meet run the same program
      return costs_.Gather(stage);
    case Op::kReduceTied:
      return costs_.tied_reduction;
    case Op::kOptimizer:
      return costs_.Optimizer(programs_[rank].pp_rank);
    case Op::kSpeculate:
      return program::ForeseesRows(instruction) ? costs_.EmbeddingUpdate(programs_[rank].pp_rank)
                                                : costs_.Foresight(programs_[rank].pp_rank);
    case Op::kVocabularyForward:
      return costs_.S(programs_[rank].pp_rank);
    case Op::kVocabularyBackward:
      return costs_.T(programs_[rank].pp_rank);
    case Op::kRows:
    case Op::kShare:
    case Op::kGather:
    case Op::kReturn:
    case Op::kRowsGrad: {
      const Meeting& meeting = meetings_.at(KeyOf(rank, instruction));
      return cost::MeetingCost(slowest_link_, static_cast<int>(meeting.places.size()),
                               meeting.bytes);
    }
    default:
      return 0;
  }
}

double Machine::MeetingSeconds(int rank, const Part& meeting) const {
  const PpRank pp_rank = programs_[rank].pp_rank;
  return cost::MeetingCost(
      meeting.group == PartGroup::kContext ? costs_.Context(pp_rank) : costs_.Tensor(pp_rank),
      meeting.bytes);
}

double Machine::SumOfMeetings(int rank, std::span<const Part> parts) const {
  double seconds = 0;
  for (const Part& part : parts) {
    if (part.meets()) seconds += MeetingSeconds(rank, part);
  }
  return seconds;
}

double Machine::MeetingSeconds(int rank, const Instruction& instruction) const {
  const double all = SumOfMeetings(rank, PartListOf(instruction, programs_[rank]));
  if (instruction.op != Op::kOverlap || all == 0 || !costs_.halves_run_beside) return all;
  const Instruction half{.op = Op::kForward, .stage = instruction.stage};
  const double of_forward = SumOfMeetings(rank, PartListOf(half, programs_[rank]));
  const double longest = std::max({all, costs_.F(instruction.stage) + of_forward,
                                   costs_.B(instruction.backward_stage) + all - of_forward});
  return std::max(0.0, longest - Duration(rank, instruction));
}

double Machine::NextMeetings(const LaneState& state) const {
  if (options_.durations == nullptr) return MeetingSeconds(state.rank, Next(state));
  if (options_.meetings == nullptr) return 0;
  const std::vector<double>& all = (*options_.meetings)[state.rank];
  const std::vector<std::size_t>& offsets = meetings_at_[state.rank];
  double seconds = 0;
  for (std::size_t i = offsets[NextIndex(state)]; i < offsets[NextIndex(state) + 1]; ++i)
    seconds += all[i];
  return seconds;
}

// What an instruction computes is spread evenly over its parts that compute.
double Machine::PartSeconds(const LaneState& state, std::span<const Part> parts) const {
  const Part& part = parts[state.part];
  if (!part.meets()) {
    const auto computing = std::ranges::count_if(parts, std::not_fn(&Part::meets));
    return NextDuration(state) / static_cast<double>(computing);
  }
  if (options_.durations == nullptr) {
    const double seconds = MeetingSeconds(state.rank, part);
    if (Next(state).op != Op::kOverlap || seconds == 0) return seconds;
    // The part of a pair's meetings that no computation hides is spread over all of them.
    return seconds * MeetingSeconds(state.rank, Next(state)) / SumOfMeetings(state.rank, parts);
  }
  if (options_.meetings == nullptr) return 0;
  const std::size_t first = meetings_at_[state.rank][NextIndex(state)];
  return (*options_.meetings)[state.rank][first + state.num_met];
}

std::optional<Machine::Blocker> Machine::FirstBlocker(const LaneState& state,
                                                      double* ready_at) const {
  for (const Wait& wait : waits_[state.rank][NextIndex(state)]) {
    const int lane = lane_begin_[state.rank] + wait.lane.value();
    const LaneState& other = lanes_[lane];
    const auto length = static_cast<std::int32_t>(other.instructions.size());
    const bool earlier = wait.position < 0;  // in the step before
    if (earlier && state.step == 0) continue;
    const int step = state.step - (earlier ? 1 : 0);
    const std::int32_t position = wait.position + (earlier ? length : 0);
    const std::int64_t number = std::int64_t{step} * length + position;
    if (number >= other.num_done) return Blocker{lane, number};
    *ready_at = std::max(*ready_at, At(step, state.rank, other.instructions[position]).end);
  }
  return std::nullopt;
}

void Machine::Advance(int lane) {
  LaneState& state = lanes_[lane];
  while (!IsDone(state) && !state.posted && !mismatch_.has_value()) {
    const Instruction& instruction = Next(state);
    if (state.in_parts) {
      AdvanceParts(lane);
      continue;
    }
    double ready_at = state.free_at;
    if (const std::optional<Blocker> blocker = FirstBlocker(state, &ready_at)) {
      lanes_[blocker->lane].sleepers.push_back({blocker->position + 1, lane});
      return;
    }
    state.ready_at = ready_at;
    const bool meets_inside = !PartListOf(instruction, programs_[state.rank]).empty();
    if (meets_inside && options_.tensor * options_.context > 1) {
      state.in_parts = true;
      state.began_at = ready_at;
      state.part = state.num_met = 0;
    } else if (IsMessageLane(state.kind)) {
      state.posted = true;
      AdvanceMessage(lane);
    } else if (Meets(instruction)) {
      state.posted = true;
      AdvanceMeeting(lane);
    } else {
      const double end = ready_at + NextDuration(state) + (meets_inside ? NextMeetings(state) : 0);
      Complete(lane, {ready_at, end}, end);
    }
  }
}

void Machine::AdvanceMessage(int lane) {
  const LaneState& state = lanes_[lane];
  if (state.partner < 0 || !lanes_[state.partner].posted) return;
  const bool sends = state.kind == LaneKind::kSend;
  const LaneState& sender = lanes_[sends ? lane : state.partner];
  const LaneState& receiver = lanes_[sends ? state.partner : lane];
  const Instruction& sent = Next(sender);
  const Instruction& received = Next(receiver);
  if (sent.stage != received.stage || sent.microbatch != received.microbatch ||
      DirectionOf(sender) != DirectionOf(receiver)) {
    mismatch_ =
        Refusal{absl::StrCat("messages are not received in the order in which they are sent: ",
                             Describe(sender), " meets ", Describe(receiver)),
                receiver.rank, NextIndex(receiver)};
    return;
  }
  const double start = std::max(sender.ready_at, receiver.ready_at);
  const int partner = state.partner;
  if (options_.durations != nullptr) {
    for (const int each : {lane, partner}) {
      const double end = start + NextDuration(lanes_[each]);
      Complete(each, {start, end}, end);
    }
  } else {
    const cost::LinkCost& link = costs_.Link(PpRank(sender.rank), PpRank(receiver.rank));
    const std::int64_t bytes = programs_[sender.rank].slots[sent.reads.front().value()].bytes;
    const double gone = start + link.seconds_per_byte * static_cast<double>(bytes);
    Complete(lane, {start, sends ? gone : gone + link.latency}, gone);
    Complete(partner, {start, sends ? gone + link.latency : gone}, gone);
  }
  work_.push_back(partner);
}

void Machine::AdvanceMeeting(int lane) {
  const Instruction& instruction = Next(lanes_[lane]);
  Meeting& meeting = meetings_.at(KeyOf(lanes_[lane].rank, instruction));
  meeting.lanes.push_back(lane);
  if (meeting.lanes.size() < meeting.places.size()) return;
  const std::vector<int> arrived = std::move(meeting.lanes);
  meeting.lanes.clear();
  double start = 0;
  for (const int each : arrived) start = std::max(start, lanes_[each].ready_at);
  for (const int each : arrived) {
    const double end = start + NextDuration(lanes_[each]);
    Complete(each, {start, end}, end);
    work_.push_back(each);
  }
}

// Goes on with an instruction until it is done or waits for others.
void Machine::AdvanceParts(int lane) {
  LaneState& state = lanes_[lane];
  const std::span<const Part> parts = PartListOf(Next(state), programs_[state.rank]);
  while (state.part < parts.size()) {
    const Part& part = parts[state.part];
    const std::size_t num_ranks = part.meets() ? RanksOf(state.rank, part.group).size() : 1;
    std::vector<int> arrived = {lane};
    if (num_ranks > 1) {
      std::vector<int>& others = in_part_[KeyOf(state, part)];
      others.push_back(lane);
      state.posted = true;
      if (others.size() < num_ranks) return;
      arrived = std::move(others);
      others.clear();
    }
    double start = 0;
    for (const int each : arrived) start = std::max(start, lanes_[each].ready_at);
    for (const int each : arrived) {
      LaneState& other = lanes_[each];
      other.ready_at = start + PartSeconds(other, parts);
      other.posted = false;
      other.num_met += part.meets() ? 1 : 0;
      ++other.part;
      if (each != lane) work_.push_back(each);
    }
  }
  state.in_parts = false;
  Complete(lane, {state.began_at, state.ready_at}, state.ready_at);
}

void Machine::Complete(int lane, Span span, double free_at) {
  LaneState& state = lanes_[lane];
  spans_[state.step * num_instructions_ + rank_begin_[state.rank] + NextIndex(state)] = span;
  state.free_at = free_at;
  state.posted = false;
  ++state.num_done;
  if (++state.next == state.instructions.size()) {
    state.next = 0;
    ++state.step;
  }
  // Woken lanes look again at all that they need. A lane that still waits goes back to sleep.
  std::erase_if(state.sleepers, [&](const std::pair<std::int64_t, int>& sleeper) {
    if (sleeper.first > state.num_done) return false;
    work_.push_back(sleeper.second);
    return true;
  });
}

Direction Machine::DirectionOf(const LaneState& state) const {
  // The direction is that of the program's own lane, because this one may hold both.
  const std::size_t next = IsDone(state) ? 0 : state.next;
  const Program& program = programs_[state.rank];
  const Instruction& instruction = program.body[state.instructions[next]];
  return program.lanes[instruction.lane.value()].direction;
}

std::vector<Machine::Place> Machine::Predecessors(Place place) const {
  std::vector<Place> result;
  const std::vector<std::int32_t>& same_lane = lanes_[LaneOf(place)].instructions;
  const auto it = std::lower_bound(same_lane.begin(), same_lane.end(), place.instruction);
  if (it != same_lane.begin()) result.push_back({place.rank, *(it - 1)});
  for (const Wait& wait : waits_[place.rank][place.instruction]) {
    if (wait.position < 0) continue;
    const LaneState& lane = lanes_[lane_begin_[place.rank] + wait.lane.value()];
    result.push_back({place.rank, lane.instructions[wait.position]});
  }
  return result;
}

std::vector<Machine::Place> Machine::Partners(Place place) const {
  const LaneState& lane = lanes_[LaneOf(place)];
  if (IsMessageLane(lane.kind)) {
    const auto it =
        std::lower_bound(lane.instructions.begin(), lane.instructions.end(), place.instruction);
    const LaneState& other = lanes_[lane.partner];
    return {{other.rank, other.instructions[it - lane.instructions.begin()]}};
  }
  std::vector<Place> result;
  const Instruction& instruction = programs_[place.rank].body[place.instruction];
  if (!Meets(instruction)) return result;
  for (const Place& each : meetings_.at(KeyOf(place.rank, instruction)).places) {
    if (each.rank != place.rank) result.push_back(each);
  }
  return result;
}

}  // namespace takt::sim
