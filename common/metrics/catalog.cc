// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/catalog.h"

namespace takt::metrics {
namespace {

constexpr const Metric* kAllMetrics[] = {
    &kOpDuration,
    &kStepDuration,
    &kBubbleFraction,
    &kP2pBytes,
    &kLastStepTimestamp,
    &kLoss,
    &kGradNorm,
    &kLearningRate,
    &kTokens,
    &kBubblePredicted,
    &kStepPredicted,
    &kWorkers,
    &kJobs,
    &kJobStep,
    &kCheckpoints,
    &kCheckpointStep,
    &kCheckpointDuration,
    &kRecoveryDuration,
    &kBuildInfo,
};

constexpr int kNumBounds = 21;
constexpr std::array<double, kNumBounds> MakeBounds() {
  std::array<double, kNumBounds> bounds = {};
  double bound = 1e-4;
  for (double& b : bounds) {
    b = bound;
    bound *= 2;
  }
  return bounds;
}
constexpr std::array<double, kNumBounds> kBounds = MakeBounds();

}  // namespace

int Metric::num_labels() const {
  int n = 0;
  while (n < static_cast<int>(label_names.size()) && !label_names[n].empty()) ++n;
  return n;
}

std::span<const Metric* const> AllMetrics() { return kAllMetrics; }

std::span<const double> HistogramBounds() { return kBounds; }

std::string_view ToString(Kind kind) {
  switch (kind) {
    case Kind::kCounter:
      return "counter";
    case Kind::kGauge:
      return "gauge";
    case Kind::kHistogram:
      return "histogram";
  }
  return "";
}

std::string_view ToString(Unit unit) {
  switch (unit) {
    case Unit::kNone:
      return "";
    case Unit::kSeconds:
      return "seconds";
    case Unit::kBytes:
      return "bytes";
    case Unit::kTokens:
      return "tokens";
    case Unit::kNats:
      return "nats";
    case Unit::kRatio:
      return "ratio";
    case Unit::kUnixSeconds:
      return "seconds since 1970";
  }
  return "";
}

}  // namespace takt::metrics
