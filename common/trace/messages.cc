// SPDX-License-Identifier: Apache-2.0
#include "common/trace/messages.h"

#include <map>
#include <tuple>
#include <utility>

namespace takt::trace {

using program::Instruction;
using program::Op;
using program::Program;

namespace {

bool SumsOverRanks(Op op) {
  return op == Op::kReduceGrad || op == Op::kReduceTied || op == Op::kGatherWeights ||
         op == Op::kNormExchange || op == Op::kEval;
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
  constexpr MicrobatchId kAll{-1};
  // The two ends of each pipeline keep their embedding equal. If the vocabulary is spread, each
  // rank does that alone, and replicas sum the rows of each of their ranks.
  if (op == Op::kReduceTied) {
    const int group = program::SpreadsVocabulary(program) ? rank : chain;
    return {op, instruction.layer, kAll, group, tp_rank};
  }
  const bool of_rows = (op == Op::kReduceGrad || op == Op::kGatherWeights) &&
                       instruction.stage.value() == program.num_stages;
  const bool of_all = op == Op::kNormExchange || op == Op::kEval;
  return {op, instruction.layer, kAll, of_rows ? 1 + pp_rank : 0, of_all ? TpRank(0) : tp_rank};
}

}  // namespace

SliceIndex::SliceIndex(const JobTrace& trace) : trace_(trace) {
  std::size_t begin = 0;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    begin_.push_back(begin);
    begin += trace.ProgramOf(rank).body.size() * trace.num_steps();
  }
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
