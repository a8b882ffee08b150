// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metric.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/metrics/catalog.h"

namespace takt::metrics {
namespace {

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

// Returns how many series one set of label values has. A histogram has its buckets, the one without
// a bound, sum and count.
constexpr int SeriesPerInstance(Kind kind) { return kind == Kind::kHistogram ? kNumBounds + 3 : 1; }

const Extent& ExtentOf(std::string_view label_name) {
  const auto label = std::ranges::find(AllLabels(), label_name, &Label::name);
  TAKT_CHECK(label != AllLabels().end());
  return label->extent;
}

int Values(const Extent& extent, const JobShape& shape) {
  switch (extent.of) {
    case Extent::Of::kStages:
      return shape.stages + shape.pp_ranks;
    case Extent::Of::kPpRanks:
      return shape.pp_ranks;
    case Extent::Of::kDpRanks:
      return shape.dp_ranks;
    case Extent::Of::kJobs:
      return 1;
    case Extent::Of::kNothing:
    case Extent::Of::kWorkers:
      break;
  }
  return extent.count;
}

std::string Letter(const Extent& extent) {
  switch (extent.of) {
    case Extent::Of::kStages:
      return "(S+P)";
    case Extent::Of::kPpRanks:
      return "P";
    case Extent::Of::kDpRanks:
      return "D";
    case Extent::Of::kJobs:
      return "";
    case Extent::Of::kNothing:
    case Extent::Of::kWorkers:
      break;
  }
  return absl::StrCat(extent.count);
}

// Each replica's workers have series of their own; their targets tell them apart.
bool RepeatsPerReplica(const Metric& metric) {
  return metric.source == Source::kWorker &&
         std::ranges::find(metric.label_names, "dp_rank") == metric.label_names.end();
}

}  // namespace

int Metric::num_labels() const {
  int n = 0;
  while (n < static_cast<int>(label_names.size()) && !label_names[n].empty()) ++n;
  return n;
}

std::span<const double> HistogramBounds() { return kBounds; }

int MostSeriesPerJob(const Metric& metric, const JobShape& shape) {
  TAKT_CHECK(metric.of_job());
  int series = SeriesPerInstance(metric.kind) * (RepeatsPerReplica(metric) ? shape.dp_ranks : 1);
  for (int i = 0; i < metric.num_labels(); ++i)
    series *= Values(ExtentOf(metric.label_names[i]), shape);
  return series;
}

std::string SeriesPerJobFormula(const Metric& metric) {
  TAKT_CHECK(metric.of_job());
  std::vector<std::string> factors;
  if (SeriesPerInstance(metric.kind) > 1)
    factors.push_back(absl::StrCat(SeriesPerInstance(metric.kind)));
  for (int i = 0; i < metric.num_labels(); ++i) {
    const std::string letter = Letter(ExtentOf(metric.label_names[i]));
    if (!letter.empty()) factors.push_back(letter);
  }
  if (RepeatsPerReplica(metric)) factors.emplace_back("D");
  return factors.empty() ? "1" : absl::StrJoin(factors, " ");
}

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

std::string_view ToString(Source source) {
  switch (source) {
    case Source::kCoordinator:
      return "coordinator";
    case Source::kWorker:
      return "worker";
    case Source::kBoth:
      return "both";
  }
  return "";
}

}  // namespace takt::metrics
