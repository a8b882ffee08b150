// SPDX-License-Identifier: Apache-2.0
#include "common/program/meeting_points.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace takt::program {
namespace {

using schedule::Action;
using schedule::ActionGraph;
using schedule::ActionKind;
using schedule::ActionNumber;
using schedule::Schedule;

// How many F of stage 0 stand between a ROWS and the F that takes its rows, that one included.
constexpr std::size_t kRowsAhead = 2;

// The ends of all actions, in units. Consumers end later than what they need.
class Ends {
 public:
  explicit Ends(const ActionGraph& graph)
      : graph_(graph),
        of_action_(static_cast<std::size_t>(graph.num_actions()), 0),
        of_rank_(graph.schedule().ranks.size(), 0) {
    const auto num_microbatches = static_cast<std::size_t>(graph.schedule().num_microbatches);
    for (auto* ends : {&norm_, &forwards_, &backwards_}) ends->assign(num_microbatches, 0);
    for (const ActionNumber number : graph.TopologicalOrder()) {
      const ActionNumber partner = graph.Partner(number);
      if (partner >= 0 && partner < number) continue;  // came with the first half of the pair
      Run(number, partner);
    }
  }

  std::int64_t Of(ActionNumber number) const { return of_action_[number]; }
  // These return when a microbatch's F of the last stage, last S and last T end.
  std::int64_t Norm(int m) const { return norm_[m]; }
  std::int64_t Forwards(int m) const { return forwards_[m]; }
  std::int64_t Backwards(int m) const { return backwards_[m]; }

 private:
  // partner: the other half of a pair, or -1.
  void Run(ActionNumber number, ActionNumber partner) {
    std::int64_t& clock = of_rank_[graph_.RankOf(number)];
    std::int64_t start = std::max(clock, InputsEnd(number));
    if (partner >= 0) start = std::max(start, InputsEnd(partner));
    const std::int64_t length = Length(number) + (partner >= 0 ? Length(partner) : 0);
    clock = start + length;
    Note(number, clock);
    if (partner >= 0) Note(partner, clock);
  }

  std::int64_t Length(ActionNumber number) const {
    return graph_.At(number).kind == ActionKind::kBackward ? 2 : 1;
  }

  std::int64_t InputsEnd(ActionNumber number) const {
    const Action& action = graph_.At(number);
    const int m = action.microbatch.value();
    if (action.kind == ActionKind::kVocabularyForward) return norm_[m];
    if (action.kind == ActionKind::kVocabularyBackward) return forwards_[m];
    if (graph_.TakesFromVocabulary(action)) return backwards_[m];
    const ActionNumber producer = graph_.Producer(action);
    return producer < 0 ? 0 : of_action_[producer];
  }

  void Note(ActionNumber number, std::int64_t end) {
    const Action& action = graph_.At(number);
    const int m = action.microbatch.value();
    of_action_[number] = end;
    if (graph_.GivesToVocabulary(action)) norm_[m] = end;
    if (action.kind == ActionKind::kVocabularyForward) forwards_[m] = std::max(forwards_[m], end);
    if (action.kind == ActionKind::kVocabularyBackward) {
      backwards_[m] = std::max(backwards_[m], end);
    }
  }

  const ActionGraph& graph_;
  std::vector<std::int64_t> of_action_;
  std::vector<std::int64_t> of_rank_;                      // of the last action so far
  std::vector<std::int64_t> norm_, forwards_, backwards_;  // by microbatch
};

struct Meeting {
  std::int64_t end = 0;  // of the last action before it
  Op op = Op::kShare;
  MicrobatchId microbatch;
};

// Returns the microbatches of stage 0 in the order of its row.
std::vector<MicrobatchId> ForwardsOfFirstStage(const Schedule& schedule) {
  std::vector<MicrobatchId> microbatches;
  for (const schedule::Row& row : schedule.ranks) {
    for (const Action& action : row) {
      if (action.kind == ActionKind::kForward && action.stage == StageId(0)) {
        microbatches.push_back(action.microbatch);
      }
    }
  }
  return microbatches;
}

std::vector<Meeting> MeetingsInOrder(const ActionGraph& graph, const Ends& ends) {
  std::vector<Meeting> meetings;
  for (int i = 0; i < graph.schedule().num_microbatches; ++i) {
    const MicrobatchId m(i);
    meetings.push_back({ends.Norm(i), Op::kShare, m});
    meetings.push_back({ends.Forwards(i), Op::kGather, m});
    meetings.push_back({ends.Backwards(i), Op::kReturn, m});
    meetings.push_back({ends.Of(graph.Gradient(StageId(0), m)), Op::kRowsGrad, m});
  }
  const std::vector<MicrobatchId> forwards = ForwardsOfFirstStage(graph.schedule());
  for (std::size_t i = 0; i < forwards.size(); ++i) {
    const bool begins = i < kRowsAhead;
    const std::int64_t end =
        begins ? 0 : ends.Of(graph.Forward(StageId(0), forwards[i - kRowsAhead]));
    meetings.push_back({end, Op::kRows, forwards[i]});
  }
  // Meetings of one op keep the order of their actions where these end together.
  std::stable_sort(meetings.begin(), meetings.end(), [](const Meeting& a, const Meeting& b) {
    return std::tie(a.end, a.op) < std::tie(b.end, b.op);
  });
  return meetings;
}

}  // namespace

std::vector<MeetingPoints> FindMeetingPoints(const ActionGraph& graph) {
  const Schedule& schedule = graph.schedule();
  std::vector<MeetingPoints> points(schedule.ranks.size());
  if (!schedule.spreads_vocabulary) return points;
  const Ends ends(graph);
  const std::vector<Meeting> meetings = MeetingsInOrder(graph, ends);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const int length = static_cast<int>(schedule.ranks[rank].size());
    int after = -1;
    for (const Meeting& meeting : meetings) {
      while (after + 1 < length && ends.Of(graph.Number(rank, after + 1)) <= meeting.end) ++after;
      points[rank].push_back({meeting.op, meeting.microbatch, after});
    }
  }
  return points;
}

}  // namespace takt::program
