// SPDX-License-Identifier: Apache-2.0
// Times an order of actions as sim::Simulate times the same schedule, but without programs. It
// assumes that two buffers for messages on their way out of a stage are enough, which may not hold
// where a message takes longer than an action. It also completes orders of F and I with the W that
// they leave open.
#pragma once

#include <vector>

#include "common/search/problem.h"

namespace takt::search {

// W go before an F that memory has no room for; where they fit into the wait for the next action's
// input, or are longer than that wait by at most `overrun` of their own length; and as soon as more
// than keep * rank of them are pending.
struct FillRule {
  double overrun = 0;
  int keep = kKeepAll;

  static constexpr int kKeepAll = 1 << 20;
};

// Borrows the problem. It allocates memory when it is made, and never after. One caller at a time.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem);

  // Returns the makespan; kNever: the order does not complete.
  double Time(const Rows& rows);

  // Returns the makespan when W are put between the F and I of `rows` as `rule` says, and the rest
  // at the end. kNever: it does not complete, or no W can make room. completed: if set, gets the
  // rows with their W.
  double Fill(const Rows& rows, const FillRule& rule, Rows* completed);

  // Returns the critical path of the last order timed, as (rank, position in the row of that call).
  // It goes from the end of the step back along what every action waited for.
  struct Place {
    int rank = 0, position = 0;
  };
  const std::vector<Place>& CriticalPath();
  // Returns the times at which actions began, by rank and position. Valid up to the length of the
  // rows.
  const std::vector<std::vector<double>>& Starts() const { return starts_; }

 private:
  template <bool kFill>
  double Run(const Rows& rows, const FillRule& rule, Rows* completed);
  template <bool kFill>
  bool Advance(int rank, const Row& row, const FillRule& rule, Row* completed);
  // Returns the time at which a message that is ready to go arrives.
  double Send(const Way& way, double ready);
  void Arrive(int holder, bool gradient, double when);
  void RunPending(int rank, Row* completed);
  bool RunPendingBefore(int rank, const Step& step, double input, const FillRule& rule,
                        Row* completed);
  template <bool kFill>
  bool RunStep(int rank, const Step& step, int item, double start);
  // Counts one more W or B of the holder, which has ended at its rank's clock.
  void FinishWeightGrad(int holder);
  // Returns the time at which the gradients of the first and the last stage are summed.
  double EndOfTiedReduction() const;

  const Problem& problem_;
  struct HolderState {
    int forwards = 0, gradients = 0, weight_grads = 0;  // done
    int arrived = 0, gradients_arrived = 0;
    double finished = 0;  // its last W or B
  };
  struct RankState {
    int position = 0;
    double clock = 0;
    double reduced = 0;  // end of its reductions so far
    std::int64_t held = 0;
    int waits_for = -1;  // 2 * holder, + 1 for a gradient
    int pending_begin = 0, pending_end = 0;
  };
  std::vector<HolderState> holders_;
  std::vector<RankState> ranks_;
  std::vector<double> arrival_, gradient_arrival_;  // by item
  std::vector<double> lane_free_;
  std::vector<int> ready_;  // ranks that may go on
  // For the critical path: the position of F and of I or B by item; and the item, and whether it
  // waited for its input, by rank and position.
  std::vector<std::int32_t> forward_position_, gradient_position_;
  std::vector<std::vector<std::int16_t>> pending_;  // by rank: holders of I without W, oldest first
  std::vector<std::vector<std::int32_t>> item_;
  std::vector<std::vector<char>> late_;
  std::vector<std::vector<double>> starts_;
  std::vector<Place> path_;
  const Rows* timed_ = nullptr;
};

}  // namespace takt::search
