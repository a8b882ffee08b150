// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/document.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/metrics/catalog.h"

namespace takt::metrics {
namespace {

constexpr std::string_view kHead = R"(# Metrics

Look up a metric here: its name, labels and unit, and what it says. This page is made from `common/metrics/catalog.h` by
`metrics_document`, and a test compares the two, so change the catalogue.

The coordinator, workers and relays serve these metrics on `/metrics`, in Prometheus' text format. They do so only with
`--metrics-listen HOST:PORT`. `dashboards/prometheus/` has scrape configurations, recording rules and alerts, and
`docs/alerts.md` says what to do about an alert.

- The label `job` is the Takt job. Prometheus calls what it scrapes `job`, too. Scrape with `honor_labels: true`.
  Otherwise Prometheus renames our label to `exported_job`, and the rules and dashboards find nothing.
- A metric of a job comes either from the coordinator or from the workers, so sums over all targets are right. To get
  the rank of a worker's metric, join by target:
  `takt_memory_bytes * on (instance) group_left (pp_rank) takt_rank_info`.
- Counters begin at 0 with the process. A coordinator that starts again sets the gauges of its jobs to what it
  remembers.
- The series of a job exist from its submission until ten minutes after its end, or until it is deleted. Those of a
  worker begin when it holds a rank of the job. They also end when it takes its next rank, of that job or another.
- Histograms have the same buckets everywhere: doubling from 100 microseconds to 105 seconds.

)";

static_assert(kMostRanksInDetail == 1024, "the text below says so");
constexpr std::string_view kBounds = R"(
## How many series

No label grows with the length of a job: there is no step, no microbatch and no generation. Take a job with S stages on
P pp ranks, with D ranks for each of these (data x context x tensor), and a model in which E blocks have experts.
Over all targets it has at most as many series as the column "Series" of its metrics says. Nearly all of them are
durations of instructions. So where a job has more than 1,024 ranks, its workers leave these out of `/metrics`, and
serve them with `?detail=all` (`params: {detail: [all]}` in a scrape configuration). These are the bounds, of models
without experts:

)";

// Adds the cells of a row, without its end.
void AddCells(std::string& text, std::initializer_list<std::string_view> cells) {
  for (const std::string_view cell : cells) text.append("| ").append(cell).append(" ");
}

std::string Quoted(std::string_view name) { return absl::StrCat("`", std::string(name), "`"); }

std::string Join(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

void AddTable(std::string& text, std::string_view title, std::initializer_list<Source> sources,
              bool of_job) {
  text.append("## ").append(title).append("\n\n");
  AddCells(text, {"Name", "Kind", "Unit", "Labels"});
  if (of_job) AddCells(text, {"Series"});
  text += of_job ? "| Is |\n|---|---|---|---|---|---|\n" : "| Is |\n|---|---|---|---|---|\n";
  for (const Metric* metric : AllMetrics()) {
    if (metric->of_job() != of_job || std::ranges::count(sources, metric->source) == 0) continue;
    const auto labels = std::span(metric->label_names).first(metric->num_labels());
    AddCells(text,
             {Quoted(metric->name), ToString(metric->kind), ToString(metric->unit), Join(labels)});
    if (of_job) AddCells(text, {SeriesPerJobFormula(*metric)});
    AddCells(text, {metric->help});
    text += "|\n";
  }
  text += "\n";
}

std::string SeriesOf(const JobShape& shape) {
  int coordinator = 0, workers = 0;
  for (const Metric* metric : AllMetrics()) {
    if (!metric->of_job()) continue;
    if (ServedOnDemand(*metric, shape.pp_ranks * shape.dp_ranks)) continue;
    (metric->source == Source::kWorker ? workers : coordinator) += MostSeriesPerJob(*metric, shape);
  }
  return absl::StrCat("| ", shape.stages, " | ", shape.pp_ranks, " | ", shape.dp_ranks, " | ",
                      coordinator, " | ", workers, " |\n");
}

}  // namespace

std::string Document() {
  std::string text(kHead);
  AddTable(text, "Of a job, from the coordinator", {Source::kCoordinator}, true);
  AddTable(text, "Of a job, from its workers", {Source::kWorker}, true);
  AddTable(text, "Of the cluster, from the coordinator", {Source::kCoordinator}, false);
  AddTable(text, "Of a worker", {Source::kWorker}, false);
  AddTable(text, "Of the relay of a host", {Source::kRelay}, false);
  AddTable(text, "Of every program", {Source::kAll}, false);
  text += "## Labels\n\n| Name | Values |\n|---|---|\n";
  for (const Label& label : AllLabels()) {
    AddCells(text, {Quoted(label.name), label.values});
    text += "|\n";
  }
  text += kBounds;
  text += "| S | P | D | coordinator | workers |\n|---|---|---|---|---|\n";
  for (const JobShape shape :
       {JobShape{4, 4, 1}, JobShape{16, 8, 4}, JobShape{64, 32, 32}, JobShape{64, 64, 256}})
    text += SeriesOf(shape);
  return text;
}

}  // namespace takt::metrics
