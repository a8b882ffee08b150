// SPDX-License-Identifier: Apache-2.0
#include "common/trace/messages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "common/program/part_lists.h"
#include "common/program/remove_barrier.h"

namespace takt::trace {

using program::Instruction;
using program::Op;
using program::Program;

namespace {

bool SumsOverRanks(Op op) {
  return op == Op::kReduceGrad || op == Op::kReduceTied || op == Op::kGatherWeights ||
         op == Op::kUnshard || op == Op::kNormExchange || op == Op::kEval;
}

// Ranks with the same key meet. The number is of the group of ranks. Sums of gradients are of ranks
// with the same part of a layer.
using MeetingKey = std::tuple<Op, LayerId, MicrobatchId, int, TpRank>;

MeetingKey KeyOf(const JobTrace& trace, int rank, const Instruction& instruction) {
  const int pp_rank = trace.mesh.PpRankOf(Rank(rank)).value();
  const int chain = trace.mesh.ChainOf(Rank(rank));
  const TpRank tp_rank = trace.mesh.TpRankOf(Rank(rank));
  const Program& program = trace.ProgramOf(rank);
  const Op op = instruction.op;
  // Under a spread vocabulary all ranks of a pipeline meet once for each microbatch.
  if (program::IsMeeting(op))
    return {op, instruction.layer, instruction.microbatch, chain, tp_rank};
  constexpr MicrobatchId kAll{-1}, kAllForeseen{-2};
  // Replicas run the same program, so they meet in the same instruction of it.
  if (op == Op::kUnshard) {
    const auto number = static_cast<std::int32_t>(&instruction - program.body.data());
    return {op, instruction.layer, MicrobatchId(number), pp_rank, tp_rank};
  }
  // The two ends of each pipeline keep their embedding equal. If the vocabulary is spread, each
  // rank does that alone, and replicas sum the rows of each of their ranks.
  if (op == Op::kReduceTied) {
    const int group = program::SpreadsVocabulary(program) ? rank : chain;
    return {op, instruction.layer, kAll, group, tp_rank};
  }
  const bool of_rows = (op == Op::kReduceGrad || op == Op::kGatherWeights) &&
                       instruction.stage.value() == program.num_stages;
  const bool of_all = op == Op::kNormExchange || op == Op::kEval;
  return {op, instruction.layer,
          program::GathersForeseen(instruction, program) ? kAllForeseen : kAll,
          of_rows ? 1 + pp_rank : 0, of_all ? TpRank(0) : tp_rank};
}

}  // namespace

SliceIndex::SliceIndex(const JobTrace& trace) : trace_(trace) {
  std::size_t begin = 0;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    begin_.push_back(begin);
    begin += trace.ProgramOf(rank).body.size() * trace.num_steps();
  }
}

MeetingIndex::MeetingIndex(const Timeline& timeline)
    : timeline_(timeline), trace_(*timeline.trace) {
  for (const Program& program : trace_.programs) offsets_.push_back(MeetingOffsets(program));
  std::size_t begin = 0;
  for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
    begin_.push_back(begin);
    begin += NumMeetings(trace_.ProgramOf(rank)) * trace_.num_steps();
  }
}

std::span<const Slice> MeetingIndex::At(int step, Place place) const {
  const std::vector<std::size_t>& offsets =
      offsets_[trace_.mesh.PpRankOf(Rank(place.rank)).value()];
  const std::size_t first = begin_[place.rank] + step * offsets.back() + offsets[place.instruction];
  return std::span(timeline_.meetings)
      .subspan(first, offsets[place.instruction + 1] - offsets[place.instruction]);
}

std::vector<Rank> MeetingIndex::RanksOf(Rank rank, program::PartGroup group) const {
  if (group == program::PartGroup::kExpert) {
    // The plan counted them, as no mesh does. Traces are read from files.
    const int size = trace_.predicted.Tensor(trace_.mesh.PpRankOf(rank)).size;
    return mesh::ExpertRanksOf(trace_.mesh, rank, std::max(size, 1));
  }
  return mesh::RanksOf(
      trace_.mesh,
      group == program::PartGroup::kContext ? mesh::Group::kContext : mesh::Group::kTensor, rank);
}

std::vector<const Slice*> MeetingIndex::Together(int step, const Slice& meeting) const {
  const Program& program = trace_.ProgramOf(meeting.rank);
  const program::Part& part = PartListOf(program.body[meeting.instruction], program)[meeting.part];
  std::vector<const Slice*> together;
  for (const Rank rank : RanksOf(Rank(meeting.rank), part.group)) {
    for (const Slice& each : At(step, {rank.value(), meeting.instruction})) {
      if (each.part == meeting.part) together.push_back(&each);
    }
  }
  return together;
}

const Slice& MeetingIndex::Last(int step, const Slice& meeting) const {
  const std::vector<const Slice*> together = Together(step, meeting);
  return **std::ranges::max_element(together, {}, &Slice::start_nanos);
}

std::int64_t ComputeNanos(const Slice& instruction, std::span<const Slice> meetings) {
  std::int64_t nanos = instruction.end_nanos - instruction.start_nanos;
  for (const Slice& meeting : meetings) nanos -= meeting.end_nanos - meeting.start_nanos;
  return std::max<std::int64_t>(nanos, 0);
}

std::vector<Message> FindMessages(const JobTrace& trace) {
  using Channel = std::tuple<int, int, program::Direction>;  // from, to
  std::map<Channel, std::vector<Place>> sends, recvs;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const Program& program = trace.ProgramOf(rank);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const Instruction& instruction = program.body[i];
      if (instruction.op != Op::kSend && instruction.op != Op::kRecv) continue;
      const program::Lane& lane = program.lanes[instruction.lane.value()];
      const int peer = trace.mesh.PeerOf(Rank(rank), lane.peer).value();
      const Place place{rank, static_cast<std::int32_t>(i)};
      if (instruction.op == Op::kSend) {
        sends[{rank, peer, lane.direction}].push_back(place);
      } else {
        recvs[{peer, rank, lane.direction}].push_back(place);
      }
    }
  }
  std::vector<Message> messages;
  for (const auto& [channel, sent] : sends) {
    const std::vector<Place>& received = recvs[channel];
    for (std::size_t i = 0; i < std::min(sent.size(), received.size()); ++i) {
      messages.push_back({sent[i], received[i]});
    }
  }
  return messages;
}

std::vector<std::vector<Place>> FindMeetings(const JobTrace& trace) {
  std::map<MeetingKey, std::vector<Place>> meetings;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const Program& program = trace.ProgramOf(rank);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const Instruction& instruction = program.body[i];
      if (!SumsOverRanks(instruction.op) && !program::IsMeeting(instruction.op)) continue;
      meetings[KeyOf(trace, rank, instruction)].push_back({rank, static_cast<std::int32_t>(i)});
    }
  }
  std::vector<std::vector<Place>> result;
  for (auto& [key, places] : meetings) {
    if (places.size() > 1) result.push_back(std::move(places));
  }
  return result;
}

}  // namespace takt::trace
