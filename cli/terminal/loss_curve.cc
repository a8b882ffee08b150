// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/loss_curve.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace takt::cli {
namespace {

constexpr int kDotColumns = 2, kDotRows = 4;  // dots of a Braille character

// The Braille character of `dots` (U+2800 and up), in UTF-8.
std::string Braille(unsigned dots) {
  const unsigned code = 0x2800 + dots;
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

// A raster of dots, of which each character shows one or more.
class Raster {
 public:
  Raster(int columns, int rows, bool braille)
      : columns_(columns),
        rows_(rows),
        braille_(braille),
        dots_(static_cast<std::size_t>(width()) * height()) {}

  int width() const { return columns_ * (braille_ ? kDotColumns : 1); }
  int height() const { return rows_ * (braille_ ? kDotRows : 1); }

  void SetColumn(int x, int from, int to) {
    for (int y = std::min(from, to); y <= std::max(from, to); ++y)
      dots_[static_cast<std::size_t>(y) * width() + x] = true;
  }

  std::vector<std::string> Rows() const {
    std::vector<std::string> rows(rows_);
    for (int row = 0; row < rows_; ++row) {
      for (int column = 0; column < columns_; ++column) rows[row] += Character(column, row);
    }
    return rows;
  }

 private:
  bool At(int x, int y) const { return dots_[static_cast<std::size_t>(y) * width() + x]; }

  std::string Character(int column, int row) const {
    if (!braille_) return At(column, row) ? "*" : " ";
    // Unicode counts the dots down the left column, down the right one, then the fourth row.
    constexpr std::array<std::array<unsigned, kDotColumns>, kDotRows> kBits = {
        {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    unsigned dots = 0;
    for (int y = 0; y < kDotRows; ++y) {
      for (int x = 0; x < kDotColumns; ++x) {
        if (At(column * kDotColumns + x, row * kDotRows + y)) dots |= kBits[y][x];
      }
    }
    return dots == 0 ? " " : Braille(dots);
  }

  const int columns_, rows_;
  const bool braille_;
  std::vector<bool> dots_;
};

}  // namespace

void LossCurve::Add(std::int64_t step, double loss) {
  if (points_.empty()) first_step_ = step;
  last_step_ = step;
  while ((step - first_step_) / steps_per_point_ >= static_cast<std::int64_t>(kMaxPoints)) Halve();
  points_.resize(static_cast<std::size_t>((step - first_step_) / steps_per_point_) + 1);
  if (!std::isfinite(loss)) return;
  points_.back().sum += loss;
  ++points_.back().count;
}

void LossCurve::Halve() {
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const Point point = points_[i];
    if (i % 2 == 0) {
      points_[i / 2] = point;
    } else {
      points_[i / 2].sum += point.sum;
      points_[i / 2].count += point.count;
    }
  }
  points_.resize((points_.size() + 1) / 2);
  steps_per_point_ *= 2;
}

std::optional<LossCurve::Picture> LossCurve::Draw(Shape shape) const {
  if (shape.columns < 1 || shape.rows < 1) return std::nullopt;
  Picture picture;
  bool any = false;
  for (const Point& point : points_) {
    if (point.count == 0) continue;
    picture.top = any ? std::max(picture.top, point.mean()) : point.mean();
    picture.bottom = any ? std::min(picture.bottom, point.mean()) : point.mean();
    any = true;
  }
  if (!any) return std::nullopt;
  Raster raster(shape.columns, shape.rows, shape.unicode);
  // Each column shows the mean of its share of the points, joined to the column before.
  const auto num_points = static_cast<std::int64_t>(points_.size());
  constexpr int kGap = -1;
  int before = kGap;
  for (int x = 0; x < raster.width(); ++x) {
    const std::int64_t from = x * num_points / raster.width();
    const std::int64_t to = std::max(from + 1, (x + 1) * num_points / raster.width());
    Point sum;
    for (std::int64_t i = from; i < to; ++i) {
      sum.sum += points_[i].sum;
      sum.count += points_[i].count;
    }
    if (sum.count == 0) {
      before = kGap;
      continue;
    }
    const double range = picture.top - picture.bottom;
    const double depth = range > 0 ? (picture.top - sum.mean()) / range : 0.5;
    const int y = std::clamp(static_cast<int>(depth * raster.height()), 0, raster.height() - 1);
    raster.SetColumn(x, before == kGap ? y : before, y);
    before = y;
  }
  picture.rows = raster.Rows();
  return picture;
}

}  // namespace takt::cli
