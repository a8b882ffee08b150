// SPDX-License-Identifier: Apache-2.0
// Keeps the losses of a job of any length in bounded memory, and draws them in characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace takt::cli {

// One caller at a time.
class LossCurve final {
 public:
  // The number of points kept. Beyond it, pairs of neighbours become their mean.
  static constexpr std::size_t kMaxPoints = 4096;

  // Adds a step; steps ascend. A loss that is not finite leaves a gap.
  void Add(std::int64_t step, double loss);

  bool empty() const { return points_.empty(); }
  std::int64_t first_step() const { return first_step_; }
  std::int64_t last_step() const { return last_step_; }

  struct Shape {
    int columns = 0, rows = 0;
    bool unicode = false;  // Braille dots, two by four in a character; else '*'
  };
  struct Picture {
    std::vector<std::string> rows;  // of shape.columns characters each, the top first
    double top = 0, bottom = 0;     // the losses at the upper and at the lower edge
  };
  // Returns nothing if there is no finite loss yet, or no room.
  std::optional<Picture> Draw(Shape shape) const;

 private:
  struct Point {
    double sum = 0;
    std::int64_t count = 0;  // of finite losses
    double mean() const { return sum / static_cast<double>(count); }
  };
  void Halve();

  std::int64_t first_step_ = 0, last_step_ = 0;
  std::int64_t steps_per_point_ = 1;
  std::vector<Point> points_;  // point i: steps_per_point_ steps from first_step_ + i * that
};

}  // namespace takt::cli
