// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/numerics/golden.h"

namespace takt::numerics {
namespace {

double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN is the worst and stays
  }
  return worst;
}

double MaxMagnitude(const std::vector<float>& a) {
  double worst = 0;
  for (const float x : a) worst = std::max<double>(worst, std::abs(x));
  return worst;
}

}  // namespace

Comparison::~Comparison() {
  std::printf("%s: worst share of what is allowed\n", title_.c_str());
  for (const Worst& worst : worst_) {
    std::printf("  %-36s %8.4f  %s\n", worst.kind.c_str(), worst.share, worst.what.c_str());
  }
}

void Comparison::Absolute(const std::string& kind, const std::string& what, double got, double want,
                          double allowed) {
  Record(kind, what, std::abs(got - want), allowed);
}

void Comparison::MaxAbsolute(const std::string& kind, const std::string& what,
                             const std::vector<float>& got, const std::vector<float>& want,
                             double allowed) {
  ASSERT_EQ(got.size(), want.size()) << title_ << " " << what;
  Record(kind, what, MaxDifference(got, want), allowed);
}

void Comparison::MaxRelative(const std::string& kind, const std::string& what,
                             const std::vector<float>& got, const std::vector<float>& want,
                             double allowed) {
  ASSERT_EQ(got.size(), want.size()) << title_ << " " << what;
  Record(kind, what, MaxDifference(got, want), allowed * MaxMagnitude(want));
}

void Comparison::RelativeL2(const std::string& kind, const std::string& what,
                            const std::vector<float>& got, const std::vector<float>& want,
                            double allowed) {
  ASSERT_EQ(got.size(), want.size()) << title_ << " " << what;
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    norm += static_cast<double>(want[i]) * want[i];
  }
  Record(kind, what, std::sqrt(difference), allowed * std::sqrt(norm));
}

void Comparison::Record(const std::string& kind, const std::string& what, double difference,
                        double allowed) {
  const double share = difference == 0 ? 0 : difference / allowed;
  EXPECT_LE(share, 1) << title_ << ": " << kind << " of " << what << " is off by " << difference
                      << ", allowed " << allowed;
  const auto it =
      std::find_if(worst_.begin(), worst_.end(), [&](const Worst& w) { return w.kind == kind; });
  if (it == worst_.end()) {
    worst_.push_back({kind, what, share});
  } else if (!(share <= it->share)) {
    it->what = what;
    it->share = share;
  }
}

}  // namespace takt::numerics
