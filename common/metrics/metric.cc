// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metric.h"

#include <algorithm>
#include <cstddef>
#include <utility>
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

// Says how many values a label can have, and what stands for that in a formula; "" is 1.
struct ValueCount {
  int number;
  std::string text;
};

ValueCount CountValues(const Extent& extent, const JobShape& shape) {
  switch (extent.of) {
    case Extent::Of::kStages:
      return {shape.stages + shape.pp_ranks, "(S+P)"};
    case Extent::Of::kExpertBlocks:
      return {shape.expert_blocks, "E"};
    case Extent::Of::kPpRanks:
      return {shape.pp_ranks, "P"};
    case Extent::Of::kDpRanks:
      return {shape.dp_ranks, "D"};
    case Extent::Of::kJobs:
      return {1, ""};
    case Extent::Of::kNothing:
    case Extent::Of::kWorkers:
      break;
  }
  return {extent.count, extent.count == 1 ? "" : absl::StrCat(extent.count)};
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
    series *= CountValues(ExtentOf(metric.label_names[i]), shape).number;
  return series;
}

std::string SeriesPerJobFormula(const Metric& metric) {
  TAKT_CHECK(metric.of_job());
  std::vector<std::string> factors;
  if (SeriesPerInstance(metric.kind) > 1)
    factors.push_back(absl::StrCat(SeriesPerInstance(metric.kind)));
  for (int i = 0; i < metric.num_labels(); ++i) {
    std::string factor = CountValues(ExtentOf(metric.label_names[i]), JobShape()).text;
    if (!factor.empty()) factors.push_back(std::move(factor));
  }
  if (RepeatsPerReplica(metric)) factors.emplace_back("D");
  return factors.empty() ? "1" : absl::StrJoin(factors, " ");
}

std::string_view ToString(Kind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"counter", "gauge", "histogram"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view ToString(Unit unit) {
  constexpr std::array<std::string_view, 7> kNames = {
      "", "seconds", "bytes", "tokens", "nats", "ratio", "seconds since 1970"};
  return kNames[static_cast<std::size_t>(unit)];
}

}  // namespace takt::metrics
