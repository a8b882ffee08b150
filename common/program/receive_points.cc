// SPDX-License-Identifier: Apache-2.0
#include "common/program/receive_points.h"

#include <algorithm>

namespace takt::program {
namespace {

using schedule::ActionGraph;
using schedule::ActionNumber;

// A vector clock: by rank, the position of the last action known to have run; -1: none.
using Clock = std::vector<int>;

// The clocks that travel with messages from their making to their use.
class ClocksUnderWay {
 public:
  explicit ClocksUnderWay(int num_actions) : holder_(num_actions, -1) {}

  void Put(ActionNumber producer, const Clock& clock) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(clocks_.size()));
      clocks_.emplace_back();
    }
    holder_[producer] = free_.back();
    free_.pop_back();
    clocks_[holder_[producer]] = clock;
  }

  void MergeInto(ActionNumber producer, Clock& clock) {
    const Clock& carried = clocks_[holder_[producer]];
    for (std::size_t rank = 0; rank < clock.size(); ++rank) {
      clock[rank] = std::max(clock[rank], carried[rank]);
    }
    free_.push_back(holder_[producer]);
  }

 private:
  std::vector<int> holder_;  // by producer: index into clocks_
  std::vector<Clock> clocks_;
  std::vector<int> free_;
};

// The clocks that meetings of a spread vocabulary pass on, by microbatch. After SHARE every rank
// knows what the F of the last stage knew, after GATHER what all S knew, after RETURN what all T
// knew.
class ClocksOfMeetings {
 public:
  explicit ClocksOfMeetings(const ActionGraph& graph) : graph_(graph) {
    const schedule::Schedule& schedule = graph.schedule();
    if (!schedule.spreads_vocabulary) return;
    const Clock nothing(schedule.ranks.size(), -1);
    for (auto* clocks : {&shared_, &gathered_, &returned_}) {
      clocks->assign(static_cast<std::size_t>(schedule.num_microbatches), nothing);
    }
  }

  // Merges what an action learns from the meeting that it takes from.
  void MergeInto(const schedule::Action& action, Clock& clock) const {
    const int m = action.microbatch.value();
    if (action.kind == schedule::ActionKind::kVocabularyForward) Merge(shared_[m], clock);
    if (action.kind == schedule::ActionKind::kVocabularyBackward) Merge(gathered_[m], clock);
    if (graph_.TakesFromVocabulary(action)) Merge(returned_[m], clock);
  }

  // Adds what an action, whose rank has this clock, brings to the meeting behind it.
  void Add(const schedule::Action& action, const Clock& clock) {
    const int m = action.microbatch.value();
    if (graph_.GivesToVocabulary(action)) Merge(clock, shared_[m]);
    if (action.kind == schedule::ActionKind::kVocabularyForward) Merge(clock, gathered_[m]);
    if (action.kind == schedule::ActionKind::kVocabularyBackward) Merge(clock, returned_[m]);
  }

 private:
  static void Merge(const Clock& from, Clock& to) {
    for (std::size_t rank = 0; rank < to.size(); ++rank) to[rank] = std::max(to[rank], from[rank]);
  }

  const ActionGraph& graph_;
  std::vector<Clock> shared_, gathered_, returned_;
};

}  // namespace

std::vector<ReceivePoints> FindReceivePoints(const ActionGraph& graph,
                                             const UnrolledSchedule& steps) {
  const int num_ranks = graph.schedule().num_ranks();
  std::vector<Clock> clocks(num_ranks, Clock(num_ranks, -1));
  ClocksUnderWay under_way(graph.num_actions());
  ClocksOfMeetings meetings(graph);
  std::vector<ReceivePoints> points(num_ranks);
  const auto take_input = [&](ActionNumber number, int rank) {
    meetings.MergeInto(graph.At(number), clocks[rank]);
    const ActionNumber producer = graph.Producer(graph.At(number));
    if (producer >= 0 && graph.RankOf(producer) != rank) {
      under_way.MergeInto(producer, clocks[rank]);
    }
  };
  for (const ActionNumber number : graph.TopologicalOrder()) {
    const int rank = graph.RankOf(number);
    const ActionNumber partner = graph.Partner(number);
    const bool second_of_pair = partner >= 0 && partner < number;
    if (!second_of_pair) {
      take_input(number, rank);
      // A pair begins with the inputs of both halves and makes both results at its end.
      if (partner >= 0) take_input(partner, rank);
      clocks[rank][rank] = graph.PositionOf(std::max(number, partner));
    }
    meetings.Add(graph.At(number), clocks[rank]);
    const ActionNumber consumer = graph.Consumer(graph.At(number));
    if (consumer < 0 || graph.RankOf(consumer) == rank) continue;
    under_way.Put(number, clocks[rank]);
    const int taker = graph.RankOf(consumer);
    const int prologue_end = steps.prologue_end[taker];
    if (graph.PositionOf(number) < steps.prologue_end[rank]) {
      points[taker].prologue.push_back(
          {.producer = number, .after = std::min(graph.PositionOf(consumer), prologue_end) - 1});
    } else if (graph.PositionOf(number) < steps.body_end[rank]) {
      points[taker].body.push_back(
          {.producer = number, .after = std::max(clocks[rank][taker], prologue_end - 1)});
    }
  }
  // So far the messages are in the order of their making, and a stable sort keeps that of each
  // sender.
  const auto is_before = [](const ReceivePoint& a, const ReceivePoint& b) {
    return a.after < b.after;
  };
  for (ReceivePoints& of_rank : points) {
    std::stable_sort(of_rank.prologue.begin(), of_rank.prologue.end(), is_before);
    std::stable_sort(of_rank.body.begin(), of_rank.body.end(), is_before);
  }
  return points;
}

}  // namespace takt::program
