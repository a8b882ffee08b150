// SPDX-License-Identifier: Apache-2.0
// Measures what `auto` finds, beside the lower bound and with the memory of 1F1B, over the grid of
// docs/schedules.md.
#include "common/search/search.h"

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"

namespace takt::bench::search_command {
namespace {

struct Options : CommonOptions {
  std::vector<int> ranks = {4, 8, 16};
  std::vector<int> chunks = {1, 2, 4};
  std::int64_t candidates = search::Request{}.max_candidates;
  double max_seconds = 60;
};

const std::map<std::string, cost::Costs>& CostSets() {
  static const auto* const sets =
      new std::map<std::string, cost::Costs>{{"skew",
                                              {.forward = {1},
                                               .input_grad = {1.1},
                                               .weight_grad = {0.7},
                                               .backward = {1.8},
                                               .link = {.latency = 0.1}}},
                                             {"unit", {}}};
  return *sets;
}

struct Row {
  int chunks = 0, ranks = 0, microbatches = 0;
  std::string costs;
  search::Found found;
  double seconds = 0;

  double bubble() const { return 1 - found.bound.work / found.makespan; }
};

absl::StatusOr<std::vector<Row>> Measure(const Options& options) {
  std::vector<Row> rows;
  for (const int chunks : options.chunks) {
    for (const int ranks : options.ranks) {
      for (const int rounds : {1, 2, 4}) {
        for (const auto& [name, costs] : CostSets()) {
          const absl::Time begin = absl::Now();
          ASSIGN_OR_RETURN(search::Found found,
                           search::Search({.num_ranks = ranks,
                                           .num_microbatches = rounds * ranks,
                                           .num_chunks = {chunks},
                                           .costs = costs,
                                           .max_in_flight = {chunks * ranks},
                                           .max_candidates = options.candidates,
                                           .max_time = absl::Seconds(options.max_seconds)}));
          rows.push_back({.chunks = chunks,
                          .ranks = ranks,
                          .microbatches = rounds * ranks,
                          .costs = name,
                          .found = std::move(found),
                          .seconds = absl::ToDoubleSeconds(absl::Now() - begin)});
        }
      }
    }
  }
  return rows;
}

std::map<int, double> MeanGaps(const std::vector<Row>& rows) {
  std::map<int, double> sums, counts;
  for (const Row& row : rows) {
    sums[row.chunks] += row.found.gap;
    ++counts[row.chunks];
  }
  for (auto& [chunks, sum] : sums) sum /= counts[chunks];
  return sums;
}

void PrintText(const std::vector<Row>& rows) {
  std::puts(
      "|  V |  P |  M | costs | makespan |   bound | gap % | bubble | binds         | placement | "
      "grown from      | candidates | seconds |");
  std::puts("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
  for (const Row& row : rows) {
    const search::Found& found = row.found;
    std::puts(
        absl::StrFormat(
            "| %2d | %2d | %2d | %-5s | %8.6g | %7.6g | %5.2f | %.4f | %-13s | %-9s | %-15s | "
            "%10d | %7.2f |%s",
            row.chunks, row.ranks, row.microbatches, row.costs, found.makespan,
            found.bound.makespan, 100 * found.gap, row.bubble(),
            schedule::BindingName(found.bound.binds),
            schedule::PlacementName(found.schedule.placement), found.origin, found.num_candidates,
            row.seconds, found.time_capped ? " stopped by the clock" : "")
            .c_str());
  }
  for (const auto& [chunks, gap] : MeanGaps(rows))
    std::puts(absl::StrFormat("V = %d: mean gap %.2f %% (limit 2 %%)", chunks, 100 * gap).c_str());
}

void PrintJson(const std::vector<Row>& rows) {
  nlohmann::json cases = nlohmann::json::array(), means;
  for (const Row& row : rows) {
    cases.push_back({{"chunks", row.chunks},
                     {"ranks", row.ranks},
                     {"microbatches", row.microbatches},
                     {"costs", row.costs},
                     {"makespan", row.found.makespan},
                     {"lower_bound", row.found.bound.makespan},
                     {"gap", row.found.gap},
                     {"bubble_fraction", row.bubble()},
                     {"binds", schedule::BindingName(row.found.bound.binds)},
                     {"origin", row.found.origin},
                     {"candidates", row.found.num_candidates},
                     {"time_capped", row.found.time_capped},
                     {"seconds", row.seconds}});
  }
  for (const auto& [chunks, gap] : MeanGaps(rows)) means[std::to_string(chunks)] = gap;
  std::puts(nlohmann::json{{"cases", cases}, {"mean_gap_by_chunks", means}, {"limit", 0.02}}
                .dump()
                .c_str());
}

absl::Status RunSearch(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<Row> rows, Measure(options));
  if (options.json()) {
    PrintJson(rows);
  } else {
    PrintText(rows);
  }
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "search", "Schedules that are searched, beside the lower bound",
      [](CLI::App& command, Options& options) {
        command.add_option("--ranks", options.ranks, "P; M is P, 2P and 4P")->delimiter(',');
        command.add_option("--chunks", options.chunks, "V; memory is V*P chunks a rank")
            ->delimiter(',');
        command.add_option("--candidates", options.candidates, "Orders timed for each placement");
        command.add_option("--max-seconds", options.max_seconds, "Of one search");
      },
      RunSearch);
}

}  // namespace takt::bench::search_command
