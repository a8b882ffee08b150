// SPDX-License-Identifier: Apache-2.0
// Declares what a metric and a label consist of.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace takt::metrics {

enum class Kind : std::uint8_t { kCounter, kGauge, kHistogram };
enum class Unit : std::uint8_t { kNone, kSeconds, kBytes, kTokens, kNats, kRatio, kUnixSeconds };
// The program that exposes the metric. A metric of a job has one source, so sums over all targets
// are right.
enum class Source : std::uint8_t { kCoordinator, kWorker, kRelay, kAll };

// Unused names are empty and come last.
using LabelNames = std::array<std::string_view, 5>;

struct Metric {
  std::string_view name;
  Source source = Source::kCoordinator;
  Kind kind = Kind::kGauge;
  Unit unit = Unit::kNone;
  std::string_view help;
  LabelNames label_names = {};

  int num_labels() const;
  // Returns whether its series belong to a job and are removed with it.
  bool of_job() const { return label_names[0] == "job"; }
};

// Says how many values a label can have: `count`, or as many as there are of something.
struct Extent {
  // kStages: one for each stage, and on each pp rank one that means no stage.
  enum class Of : std::uint8_t {
    kNothing,
    kStages,
    kExpertBlocks,
    kPpRanks,
    kDpRanks,
    kJobs,
    kWorkers
  };
  int count = 0;
  Of of = Of::kNothing;
};

struct Label {
  std::string_view name;
  std::string_view values;  // for people
  Extent extent;
};

// Upper bounds of a histogram's buckets, in its unit. They double from 100 microseconds to 105
// seconds.
std::span<const double> HistogramBounds();

std::string_view ToString(Kind kind);
std::string_view ToString(Unit unit);

// The size of a job, and how many blocks of its model have experts.
struct JobShape {
  int stages = 1, pp_ranks = 1;
  int dp_ranks = 1;  // of each pp rank: those of all other axes
  int expert_blocks = 0;
};

// Returns the most series that `metric` can have for one job over all targets of its source, served
// on demand or not. A histogram has one for each bucket and three more. metric: of a job.
int MostSeriesPerJob(const Metric& metric, const JobShape& shape);
// Returns the same as a formula, with S stages, P pp ranks, D ranks for each of these and E blocks
// with experts.
std::string SeriesPerJobFormula(const Metric& metric);

}  // namespace takt::metrics
