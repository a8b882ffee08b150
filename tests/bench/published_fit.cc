// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/published_fit.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "common/base/status.h"

namespace takt::bench {
namespace {

constexpr int kMostRounds = 20;
constexpr double kLeastGain =
    1e-6;  // of the sum of squares, relative, for which a round is worth it
// By so much the constants differ where slopes are taken. Steps are linear in them as long as the
// critical path stays the same.
constexpr double kInversePart = 1e-3, kValuePart = 1e-12;
constexpr double kLeastInverse = 0.1;

// The constants as steps depend on them: linearly.
struct Point {
  double inverse_share = 1, seconds_per_value = 0;
};

FittedConstants ConstantsAt(const Point& point) {
  return {.peak_share = 1 / point.inverse_share, .seconds_per_value = point.seconds_per_value};
}

// The sums of the normal equations for relative errors r, with slopes a and b of the two constants.
struct NormalEquations {
  double aa = 0, ab = 0, bb = 0, ar = 0, br = 0;

  void Add(double a, double b, double r) {
    aa += a * a;
    ab += a * b;
    bb += b * b;
    ar += a * r;
    br += b * r;
  }
};

// Returns the point that the equations ask for. Values take no less than no time.
Point Solve(const NormalEquations& sums, const Point& from) {
  const double determinant = sums.aa * sums.bb - sums.ab * sums.ab;
  double by_value = 0;
  if (determinant > 1e-9 * sums.aa * sums.bb)
    by_value = (sums.aa * sums.br - sums.ab * sums.ar) / determinant;
  by_value = std::max(by_value, -from.seconds_per_value);
  const double by_inverse = sums.aa > 0 ? (sums.ar - sums.ab * by_value) / sums.aa : 0;
  return {.inverse_share = std::max(kLeastInverse, from.inverse_share + by_inverse),
          .seconds_per_value = from.seconds_per_value + by_value};
}

double SumOfSquares(const std::vector<double>& measured, const std::vector<double>& predicted) {
  double squares = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const double error = predicted[i] / measured[i] - 1;
    squares += error * error;
  }
  return squares;
}

}  // namespace

absl::StatusOr<FittedConstants> FitConstants(const std::vector<double>& measured,
                                             const PredictSteps& predict) {
  TAKT_CHECK(!measured.empty());
  const FittedConstants usual;
  Point point{.inverse_share = 1 / usual.peak_share, .seconds_per_value = usual.seconds_per_value};
  Point best = point;
  double least = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    ASSIGN_OR_RETURN(const std::vector<double> here, predict(ConstantsAt(point)));
    const double squares = SumOfSquares(measured, here);
    if (round > 0 && squares > least * (1 - kLeastGain)) break;
    least = squares;
    best = point;
    Point beside = point;
    beside.inverse_share += kInversePart;
    ASSIGN_OR_RETURN(const std::vector<double> slower, predict(ConstantsAt(beside)));
    beside = point;
    beside.seconds_per_value += kValuePart;
    ASSIGN_OR_RETURN(const std::vector<double> longer, predict(ConstantsAt(beside)));
    NormalEquations sums;
    for (std::size_t i = 0; i < measured.size(); ++i) {
      sums.Add((slower[i] - here[i]) / kInversePart / measured[i],
               (longer[i] - here[i]) / kValuePart / measured[i], 1 - here[i] / measured[i]);
    }
    point = Solve(sums, point);
  }
  return ConstantsAt(best);
}

double KendallTau(const std::vector<double>& measured, const std::vector<double>& predicted) {
  TAKT_CHECK(measured.size() == predicted.size());
  int pairs = 0, agreement = 0;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (measured[i] == measured[j]) continue;
      ++pairs;
      if (predicted[i] == predicted[j]) continue;
      agreement += (measured[i] < measured[j]) == (predicted[i] < predicted[j]) ? 1 : -1;
    }
  }
  return pairs == 0 ? 0 : static_cast<double>(agreement) / pairs;
}

double Regret(const std::vector<double>& measured, const std::vector<double>& predicted) {
  TAKT_CHECK(!measured.empty() && measured.size() == predicted.size());
  const auto pick = std::distance(predicted.begin(), std::ranges::min_element(predicted));
  return measured[static_cast<std::size_t>(pick)] / *std::ranges::min_element(measured);
}

}  // namespace takt::bench
