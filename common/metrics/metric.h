// SPDX-License-Identifier: Apache-2.0
// What is declared of a metric and of a label.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace takt::metrics {

enum class Kind : std::uint8_t { kCounter, kGauge, kHistogram };
enum class Unit : std::uint8_t { kNone, kSeconds, kBytes, kTokens, kNats, kRatio, kUnixSeconds };
// Which program exposes it. No metric of a job has two sources, so that sums over all targets are
// right.
enum class Source : std::uint8_t { kCoordinator, kWorker, kBoth };

struct Metric {
  std::string_view name;
  Source source = Source::kCoordinator;
  Kind kind = Kind::kGauge;
  Unit unit = Unit::kNone;
  std::string_view help;
  std::array<std::string_view, 4> label_names = {};  // unused ones empty, at the end

  int num_labels() const;
  // Its series go with the job that they are of.
  bool of_job() const { return label_names[0] == "job"; }
};

// How many values a label can have: `count`, or one for each of what there is.
struct Extent {
  // kStages: a stage each, and none once on each pp rank.
  enum class Of : std::uint8_t { kNothing, kStages, kPpRanks, kDpRanks, kJobs, kWorkers };
  int count = 0;
  Of of = Of::kNothing;
};

struct Label {
  std::string_view name;
  std::string_view values;  // for people
  Extent extent;
};

// Upper bounds of a histogram's buckets, in its unit: doubling from 100 microseconds to 105
// seconds.
std::span<const double> HistogramBounds();

std::string_view ToString(Kind kind);
std::string_view ToString(Unit unit);
std::string_view ToString(Source source);

// What a job's pipeline consists of.
struct JobShape {
  int stages = 1, pp_ranks = 1, dp_ranks = 1;
};

// The most series that `metric` can have for one job over all targets of its source; a histogram
// has one a bucket and three more. metric: of a job.
int MostSeriesPerJob(const Metric& metric, const JobShape& shape);
// The same as a formula: S stages, P pp ranks, D dp ranks.
std::string SeriesPerJobFormula(const Metric& metric);

}  // namespace takt::metrics
