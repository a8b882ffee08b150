// SPDX-License-Identifier: Apache-2.0
#include "common/explain/durations.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/median.h"
#include "common/base/status.h"
#include "common/program/remove_barrier.h"
#include "common/sim/executed.h"
#include "common/trace/messages.h"
#include "common/trace/nearest_steps.h"

namespace takt::explain {
namespace {

using program::Instruction;
using program::Op;
using trace::Place;
using trace::Slice;
using trace::TimeSum;

double Seconds(std::int64_t nanos) { return static_cast<double>(nanos) * 1e-9; }

// Cuts one step out of a timeline.
class Extractor {
 public:
  Extractor(const trace::Timeline& timeline, int index)
      : timeline_(timeline),
        trace_(*timeline.trace),
        slice_index_(trace_),
        meeting_index_(timeline),
        index_(index) {}

  sim::Durations Usual() {
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) SetLane(rank);
    for (const trace::Message& message : trace::FindMessages(trace_)) {
      const std::int64_t start =
          std::max(At(message.send).start_nanos, At(message.recv).start_nanos);
      const std::vector<Place> ends = {message.send, message.recv};
      for (const Place& end : ends) Set(end, start, ends);
    }
    for (const std::vector<Place>& meeting : trace::FindMeetings(trace_)) {
      std::int64_t start = At(meeting.front()).start_nanos;
      for (const Place& place : meeting) start = std::max(start, At(place).start_nanos);
      for (const Place& place : meeting) Set(place, start, meeting);
    }
    return std::move(durations_);
  }

  // Returns the meetings inside instructions, each from when all were there.
  sim::Durations Meetings() const {
    sim::Durations durations;
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      std::vector<double>& of_rank = durations.emplace_back();
      const auto length = static_cast<std::int32_t>(trace_.ProgramOf(rank).body.size());
      for (std::int32_t i = 0; i < length; ++i) {
        for (const Slice& meeting : meeting_index_.At(index_, {rank, i})) {
          const std::int64_t start = meeting_index_.Last(index_, meeting).start_nanos;
          of_rank.push_back(Seconds(std::max<std::int64_t>(meeting.end_nanos - start, 0)));
        }
      }
    }
    return durations;
  }

 private:
  const Slice& At(int step, Place place) const {
    return timeline_.slices[slice_index_(step, place)];
  }
  const Slice& At(Place place) const { return At(index_, place); }

  // Compute takes what it usually takes, and everything else what it took.
  void SetLane(int rank) {
    using Kind = std::tuple<Op, StageId, StageId, std::int32_t>;
    const program::Program& program = trace_.ProgramOf(rank);
    const auto kind_of = [&](std::int32_t i) {
      const Instruction& instruction = program.body[i];
      return Kind(instruction.op, instruction.stage, instruction.backward_stage,
                  instruction.num_microbatches);
    };
    const auto length = static_cast<std::int32_t>(program.body.size());
    std::map<Kind, std::vector<double>> samples;
    for (int step = 0; step < trace_.num_steps(); ++step) {
      for (std::int32_t i = 0; i < length; ++i) {
        if (WorkOf(program.body[i]) != Work::kCompute) continue;
        samples[kind_of(i)].push_back(
            Seconds(trace::ComputeNanos(At(step, {rank, i}), meeting_index_.At(step, {rank, i}))));
      }
    }
    std::map<Kind, double> usual;
    for (auto& [kind, seconds] : samples) usual[kind] = Median(std::move(seconds));
    std::vector<double>& durations = durations_.emplace_back();
    for (std::int32_t i = 0; i < length; ++i) {
      const bool computes = WorkOf(program.body[i]) == Work::kCompute;
      const Place place = {rank, i};
      durations.push_back(computes ? usual[kind_of(i)]
                                   : Lasted(place, At(place).start_nanos, {place}));
    }
  }

  void Set(Place place, std::int64_t start, const std::vector<Place>& together) {
    durations_[place.rank][place.instruction] = Lasted(place, start, together);
  }

  // The time from `start`, when all were there, less the time in which one of them stood still.
  double Lasted(Place place, std::int64_t start, const std::vector<Place>& together) const {
    const std::int64_t end = std::max(start, At(place).end_nanos);
    std::vector<trace::Span> stalls;
    for (const Place& each : together) {
      for (const trace::Span& stall : timeline_.stalls[each.rank]) {
        const trace::Span during = {std::max(start, stall.start_nanos),
                                    std::min(end, stall.end_nanos)};
        if (during.start_nanos < during.end_nanos) stalls.push_back(during);
      }
    }
    std::int64_t lasted = end - start;
    for (const trace::Span& stall : trace::Merged(std::move(stalls))) {
      lasted -= stall.end_nanos - stall.start_nanos;
    }
    return Seconds(lasted);
  }

  const trace::Timeline& timeline_;
  const trace::JobTrace& trace_;
  const trace::SliceIndex slice_index_;
  const trace::MeetingIndex meeting_index_;
  const int index_;  // of the step
  sim::Durations durations_;
};

}  // namespace

Work WorkOf(const Instruction& instruction) {
  if (program::IsMeeting(instruction.op) || program::ForeseesRows(instruction))
    return Work::kMessage;
  switch (instruction.op) {
    case Op::kLoad:
      return Work::kData;
    case Op::kSend:
    case Op::kRecv:
      return Work::kMessage;
    case Op::kReduceGrad:
    case Op::kReduceTied:
    case Op::kGatherWeights:
    case Op::kUnshard:
    case Op::kReshard:
    case Op::kNormExchange:
    case Op::kEval:
      return Work::kSum;
    default:
      return Work::kCompute;
  }
}

absl::StatusOr<MeasuredStep> MeasuredStep::Create(const trace::Timeline& timeline, StepId step) {
  const auto window = std::ranges::find(timeline.steps, step, &trace::StepWindow::step);
  if (window == timeline.steps.end()) {
    std::vector<StepId> steps;
    for (const trace::StepWindow& each : timeline.steps) steps.push_back(each.step);
    return absl::NotFoundError(
        absl::StrCat("step ", step.value(), " of job ", timeline.trace->job,
                     " is not in the trace: ", trace::NearestSteps(steps, step, step)));
  }
  MeasuredStep measured;
  measured.window_ = *window;
  const std::vector<program::Program> whole =
      sim::SpreadOverCopies(timeline.trace->programs, timeline.trace->mesh.num_chains());
  sim::ExecutedPrograms executed =
      sim::AsExecuted(whole, timeline.trace->predicted.halves_run_beside);
  measured.mesh_ = timeline.trace->mesh;
  Extractor extractor(timeline, static_cast<int>(window - timeline.steps.begin()));
  const sim::Durations usual = extractor.Usual();
  for (std::size_t rank = 0; rank < whole.size(); ++rank) {
    trace::PassesAlone& alone = measured.alone_.emplace_back();
    for (std::size_t i = 0; i < whole[rank].body.size(); ++i)
      alone.Add(whole[rank].body[i], usual[rank][i]);
  }
  measured.usual_ = sim::OfHalves(executed, usual, [&](std::size_t rank, std::size_t instruction) {
    return measured.ForwardShare(rank, whole[rank].body[instruction]);
  });
  measured.meetings_ = extractor.Meetings();  // a split program has them in the same order
  measured.programs_ = std::move(executed.programs);
  // From here on replays cannot fail, because programs and the shape of durations stay the same.
  RETURN_IF_ERROR(
      sim::Replay(measured.programs_, measured.usual_, measured.Options(&measured.meetings_))
          .status());
  return measured;
}

sim::ReplayOptions MeasuredStep::Options(const sim::Durations* meetings) const {
  return {.meetings = meetings, .tensor = mesh_.tp_size, .context = mesh_.cp_size};
}

double MeasuredStep::ForwardShare(std::size_t rank, const Instruction& pair) const {
  constexpr double kUsualShare = 1.0 / 3;  // a B takes twice as long
  const double forward = alone_[rank].Forward(pair.stage);
  const double backward = alone_[rank].Backward(pair.backward_stage);
  return forward > 0 && backward > 0 ? forward / (forward + backward) : kUsualShare;
}

double MeasuredStep::StepTime(const sim::Durations& durations) const {
  return sim::Replay(programs_, durations, Options(&meetings_)).value().step_time;
}

double MeasuredStep::StepTimeWithoutMeetings(const sim::Durations& durations) const {
  return sim::Replay(programs_, durations, Options(nullptr)).value().step_time;
}

sim::Durations WithFree(const MeasuredStep& step, sim::Durations durations, Work work) {
  step.ForEach([&](std::size_t rank, std::size_t i, const Instruction& instruction) {
    if (WorkOf(instruction) == work) durations[rank][i] = 0;
  });
  return durations;
}

sim::Durations Balanced(const MeasuredStep& step, sim::Durations durations) {
  std::map<Op, TimeSum> sums;
  const auto for_each_compute = [&](auto visit) {
    step.ForEach([&](std::size_t rank, std::size_t i, const Instruction& instruction) {
      if (WorkOf(instruction) == Work::kCompute) visit(instruction, durations[rank][i]);
    });
  };
  for_each_compute([&](const Instruction& instruction, double seconds) {
    sums[instruction.op].Add(seconds, instruction);
  });
  for_each_compute([&](const Instruction& instruction, double& seconds) {
    seconds = sums[instruction.op].mean() * instruction.num_microbatches;
  });
  return durations;
}

std::vector<double> BusySeconds(const MeasuredStep& step, const sim::Durations& durations) {
  std::vector<double> busy(durations.size(), 0.0);
  step.ForEach([&](std::size_t rank, std::size_t i, const Instruction& instruction) {
    if (WorkOf(instruction) == Work::kCompute) busy[rank] += durations[rank][i];
  });
  return busy;
}

}  // namespace takt::explain
