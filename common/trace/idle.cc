// SPDX-License-Identifier: Apache-2.0
#include "common/trace/idle.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/trace/messages.h"

namespace takt::trace {
namespace {

using program::Instruction;
using program::LaneKind;
using program::Op;
using program::Program;

// The bodies of all ranks, with what waits for what.
class IdleFinder {
 public:
  explicit IdleFinder(const Timeline& timeline)
      : trace_(*timeline.trace),
        index_(trace_),
        meeting_index_(timeline),
        slices_(timeline.slices),
        prologue_(timeline.prologue),
        stalls_(timeline.stalls) {
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      const Program& program = trace_.ProgramOf(rank);
      waits_.push_back(program::Dependencies(program));
      std::vector<std::vector<std::int32_t>>& lanes = lanes_.emplace_back(program.lanes.size());
      for (std::size_t i = 0; i < program.body.size(); ++i) {
        lanes[program.body[i].lane.value()].push_back(static_cast<std::int32_t>(i));
      }
    }
    for (const Message& message : FindMessages(trace_)) {
      other_end_[message.send] = message.recv;
      other_end_[message.recv] = message.send;
    }
    for (const std::vector<Place>& meeting : FindMeetings(trace_)) {
      for (const Place& place : meeting) meetings_[place] = meeting;
    }
  }

  std::vector<Idle> Find() {
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      const Program& program = trace_.ProgramOf(rank);
      for (int step = 0; step < trace_.num_steps(); ++step) {
        // A step that the trace does not have may have run in between.
        std::optional<std::int64_t> idle_since;
        if (follows(rank, step)) idle_since = last_end_;
        if (pauses(rank, step)) idle_since = ExplainPause(rank, step, idle_since);
        for (std::size_t i = 0; i < program.body.size(); ++i) {
          if (program.lanes[program.body[i].lane.value()].kind != LaneKind::kCompute) continue;
          const Slice& slice = At(step, {rank, static_cast<std::int32_t>(i)});
          const std::int64_t since = idle_since.value_or(StartOf(rank, step));
          if (slice.start_nanos > since) Explain(step, slice, since);
          ExplainInside(step, slice);
          idle_since = slice.end_nanos;
        }
        last_end_ = idle_since.value_or(last_end_);
      }
    }
    return std::move(idle_);
  }

 private:
  const Slice& At(int step, Place place) const { return slices_[index_(step, place)]; }
  Op OpAt(Place place) const { return trace_.ProgramOf(place.rank).body[place.instruction].op; }

  bool follows(int rank, int step) const {
    if (step == 0) return false;
    const std::vector<StepTrace>& steps = trace_.ranks[rank].steps;
    return steps[step].step.value() == steps[step - 1].step.value() + 1;
  }

  // Converts a time to the timeline: it is shifted as the rank's slices are.
  std::int64_t StartOf(int rank, int step) const {
    const StepTrace& raw = trace_.ranks[rank].steps[step];
    if (raw.body.empty()) return 0;
    return At(step, {rank, 0}).start_nanos - raw.body[0].start_nanos + raw.start_nanos;
  }

  // Returns whether the step begins anew, not where the one before it ended.
  bool pauses(int rank, int step) const {
    const std::vector<StepTrace>& steps = trace_.ranks[rank].steps;
    if (!steps[step].prologue.empty()) return true;
    if (!follows(rank, step)) return false;
    std::int64_t end = 0;
    for (const Span& span : steps[step - 1].body) end = std::max(end, span.end_nanos);
    return steps[step].start_nanos > end;
  }

  // Adds the idle time up to where the step begins, and returns that time.
  std::int64_t ExplainPause(int rank, int step, std::optional<std::int64_t> idle_since) {
    const Program& program = trace_.ProgramOf(rank);
    const auto compute = std::ranges::find_if(program.body, [&](const Instruction& instruction) {
      return program.lanes[instruction.lane.value()].kind == LaneKind::kCompute;
    });
    if (compute == program.body.end()) return StartOf(rank, step);
    const Slice& first =
        At(step, {rank, static_cast<std::int32_t>(compute - program.body.begin())});
    std::int64_t begin = StartOf(rank, step);
    cursor_ = idle_since.value_or(begin);
    for (const Slice& slice : prologue_) {
      if (slice.rank != rank || slice.step != first.step) continue;
      begin = std::max(begin, slice.end_nanos);
      const LaneId lane = program.prologue[slice.instruction].lane;
      if (program.lanes[lane.value()].kind != LaneKind::kCompute) continue;
      Until(slice.start_nanos, first, Cause::kPause);
      cursor_ = slice.end_nanos;
    }
    Until(begin, first, Cause::kPause);
    return begin;
  }

  // Returns the instructions of its rank that an instruction waited for.
  struct Waited {
    int step = 0;
    Place place;
  };
  std::vector<Waited> WaitedFor(int step, Place place) const {
    std::vector<Waited> result;
    for (const program::Wait& wait : waits_[place.rank][place.instruction]) {
      const std::vector<std::int32_t>& lane = lanes_[place.rank][wait.lane.value()];
      if (wait.position >= 0) {
        result.push_back({step, {place.rank, lane[wait.position]}});
      } else if (follows(place.rank, step)) {
        result.push_back({step - 1, {place.rank, lane[lane.size() + wait.position]}});
      }
    }
    return result;
  }

  // Returns the time at which the last instruction ended that `place` waited for on its rank. Then
  // a SEND's message was made, or the rank was ready for a sum. The start of `place` is later by
  // what its lane had to do before.
  std::int64_t ReadyAt(int step, Place place) const {
    std::int64_t ready = 0;
    bool any = false;
    for (const Waited& waited : WaitedFor(step, place)) {
      ready = std::max(ready, At(waited.step, waited.place).end_nanos);
      any = true;
    }
    const std::int64_t start = At(step, place).start_nanos;
    return any ? std::min(ready, start) : start;
  }

  void Explain(int step, const Slice& slice, std::int64_t idle_since) {
    cursor_ = idle_since;
    const Waited* last = nullptr;
    const std::vector<Waited> waits = WaitedFor(step, {slice.rank, slice.instruction});
    for (const Waited& waited : waits) {
      const std::int64_t end = At(waited.step, waited.place).end_nanos;
      if (end > idle_since && (last == nullptr || end > At(last->step, last->place).end_nanos)) {
        last = &waited;
      }
    }
    if (last != nullptr) ExplainWait(*last, slice);
    Until(slice.start_nanos, slice, Cause::kRuntime);
  }

  void ExplainWait(const Waited& waited, const Slice& slice) {
    const std::int64_t end = std::min(At(waited.step, waited.place).end_nanos, slice.start_nanos);
    const auto other = other_end_.find(waited.place);
    const auto meeting = meetings_.find(waited.place);
    if (other != other_end_.end()) {
      const int peer = other->second.rank;
      if (OpAt(waited.place) == Op::kRecv) {
        Until(std::min(ReadyAt(waited.step, other->second), end), slice, Cause::kPeer, peer);
      }
      Until(end, slice, Cause::kLink, peer);
      return;
    }
    if (meeting != meetings_.end()) {
      Place latest = waited.place;
      for (const Place& place : meeting->second) {
        if (ReadyAt(waited.step, place) > ReadyAt(waited.step, latest)) latest = place;
      }
      if (latest.rank != slice.rank) {
        Until(std::min(ReadyAt(waited.step, latest), end), slice, Cause::kPeer, latest.rank);
      }
    }
    Until(end, slice, CauseOf(OpAt(waited.place)));
  }

  // In the meetings inside an instruction the rank computes nothing. The list of a pair has the
  // meetings of its F before those of its B, whatever their times.
  void ExplainInside(int step, const Slice& slice) {
    const std::span<const Slice> listed = meeting_index_.At(step, {slice.rank, slice.instruction});
    std::vector<Slice> meetings(listed.begin(), listed.end());
    std::ranges::stable_sort(meetings, {}, &Slice::start_nanos);
    for (const Slice& meeting : meetings) {
      cursor_ = meeting.start_nanos;
      const Slice& last = meeting_index_.Last(step, meeting);
      const std::int64_t all_there = std::min(last.start_nanos, meeting.end_nanos);
      if (last.rank != slice.rank) Until(all_there, slice, Cause::kPeer, last.rank);
      Until(meeting.end_nanos, slice, Cause::kLink);
    }
  }

  static Cause CauseOf(Op op) {
    switch (op) {
      case Op::kLoad:
        return Cause::kData;
      case Op::kReduceGrad:
      case Op::kReduceTied:
      case Op::kGatherWeights:
      case Op::kUnshard:
      case Op::kReshard:
        return Cause::kReduction;
      case Op::kNormExchange:
      case Op::kEval:
        return Cause::kSync;
      case Op::kRows:
      case Op::kShare:
      case Op::kGather:
      case Op::kReturn:
      case Op::kRowsGrad:
        return Cause::kLink;
      default:
        return Cause::kLink;  // a channel without its other end
    }
  }

  // Explains the idle time up to `end`. While the rank's own process stood still, it waited for
  // nothing else.
  void Until(std::int64_t end, const Slice& slice, Cause cause, int peer = -1) {
    for (const Span& stall : stalls_[slice.rank]) {
      if (stall.end_nanos <= cursor_ || cause == Cause::kPause) continue;
      if (stall.start_nanos >= end) break;
      Add(std::min(stall.start_nanos, end), slice, cause, peer);
      Add(std::min(stall.end_nanos, end), slice, Cause::kRuntime, -1);
    }
    Add(end, slice, cause, peer);
  }

  void Add(std::int64_t end, const Slice& slice, Cause cause, int peer) {
    if (end <= cursor_) return;
    idle_.push_back({.rank = slice.rank,
                     .before = slice.instruction,
                     .step = slice.step,
                     .start_nanos = cursor_,
                     .end_nanos = end,
                     .cause = cause,
                     .peer = peer});
    cursor_ = end;
  }

  const JobTrace& trace_;
  const SliceIndex index_;
  const MeetingIndex meeting_index_;
  const std::vector<Slice>& slices_;
  const std::vector<Slice>& prologue_;
  const std::vector<std::vector<Span>>& stalls_;
  std::vector<program::WaitLists> waits_;                      // by rank
  std::vector<std::vector<std::vector<std::int32_t>>> lanes_;  // by rank and lane
  std::map<Place, Place> other_end_;
  std::map<Place, std::vector<Place>> meetings_;
  std::int64_t last_end_ = 0;  // of the step before on the rank at hand
  std::int64_t cursor_ = 0;    // where the idle time that is explained has come to
  std::vector<Idle> idle_;
};

}  // namespace

std::vector<Idle> FindIdle(const Timeline& timeline) { return IdleFinder(timeline).Find(); }

}  // namespace takt::trace
