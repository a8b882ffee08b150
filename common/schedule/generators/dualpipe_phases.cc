// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/dualpipe_phases.h"

#include <deque>
#include <utility>

namespace takt::schedule {
namespace {

// Writes one rank's row action by action. Each direction takes its microbatches in ascending order.
class DualPipeRow {
 public:
  explicit DualPipeRow(const std::array<Direction, 2>& directions) : directions_(directions) {}

  void F(int direction) { Add(direction, ActionKind::kForward, forwards_[direction]++); }
  void B(int direction) { Add(direction, ActionKind::kBackward, backwards_[direction]++); }
  void I(int direction) {
    Add(direction, ActionKind::kInputGrad, backwards_[direction]++);
    pending_.push_back(row_.back());
  }
  // Adds the oldest pending W.
  void W() {
    row_.push_back(pending_.front());
    row_.back().kind = ActionKind::kWeightGrad;
    pending_.pop_front();
  }
  // Adds O(F, B): F of `forward_direction`, B of the other direction.
  void O(int forward_direction) {
    F(forward_direction);
    row_.back().joins_next = true;
    B(1 - forward_direction);
  }

  Row Take() { return std::move(row_); }

 private:
  void Add(int direction, ActionKind kind, int index) {
    const Direction& d = directions_[direction];
    row_.push_back({StageId(d.stage), kind, MicrobatchId(d.first_microbatch + index)});
  }

  std::array<Direction, 2> directions_;
  std::array<int, 2> forwards_{}, backwards_{};
  std::deque<Action> pending_;  // I without their W
  Row row_;
};

}  // namespace

Row BuildDualPipeRow(const DualPipeShape& shape) {
  const int near = shape.distance + 1;  // ranks up to here from the entry of direction 0
  const int far = shape.half - 1 - shape.distance;  // ranks beyond this one
  DualPipeRow row(shape.directions);
  for (int i = 0; i < 2 * far; ++i) row.F(0);
  for (int i = 0; i < near; ++i) {
    row.F(0);
    row.F(1);
  }
  for (int i = 0; i < far; ++i) {
    row.I(1);
    row.W();
    row.F(1);
  }
  for (int i = 0; i < shape.num_microbatches - 2 * shape.half + near; ++i) {
    if (i == 0 &&
        far == 0) {  // where the directions meet, B is late: F and B apart fill the rank sooner
      row.F(0);
      row.B(1);
    } else {
      row.O(0);
    }
    row.O(1);
  }
  for (int i = 0; i < far; ++i) {
    row.B(1);
    row.O(1);
  }
  for (int i = 0; i < 2 * near; ++i) {
    const int direction = i % 2 == 0 ? 1 : 0;
    if (i < near) {
      row.B(direction);
    } else {
      row.I(direction);
    }
  }
  for (int i = 0; i < far; ++i) {
    row.W();
    row.I(0);
  }
  for (int i = 0; i < near; ++i) row.W();
  return row.Take();
}

}  // namespace takt::schedule
