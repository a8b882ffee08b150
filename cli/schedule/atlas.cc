// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/atlas.h"

#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"

namespace takt::cli {
namespace {

using schedule::ActionKind;
using schedule::TimedAction;

// These sizes keep the page at about a megabyte and show how the families differ.
constexpr std::pair<int, int> kSizes[] = {{2, 2}, {2, 4},  {2, 8},  {4, 4},   {4, 8},  {4, 16},
                                          {8, 8}, {8, 16}, {8, 32}, {16, 16}, {16, 32}};
constexpr int kChunks[] = {2, 4};  // of families that take any number

constexpr double kTick = 0.05;  // all times of kCostSets are multiples of it

struct CostSet {
  std::string_view name;
  double forward, input_grad, weight_grad;
  double overlap;  // 0: F + B
  double latency;
  double last_stage;  // the time of the last stage relative to the others
};
constexpr CostSet kCostSets[] = {
    {"F = I = W = 1, messages free", 1, 1, 1, 0, 0, 1},
    {"F 1, I 1.1, W 0.7, a message 0.1", 1, 1.1, 0.7, 0, 0.1, 1},
    {"F = I = W = 1, a message 0.5", 1, 1, 1, 0, 0.5, 1},
    {"F 1, I 1, W 0.5, a message 0.05", 1, 1, 0.5, 0, 0.05, 1},
    {"F = I = W = 1, an overlapped pair 2.5", 1, 1, 1, 2.5, 0, 1},
    {"F = I = W = 1, the last stage 1.5 times as long", 1, 1, 1, 0, 0, 1.5}};

StepCosts CostsOf(const CostSet& set, int num_stages) {
  const auto by_stage = [&](double cost) {
    std::vector<double> list(num_stages, cost);
    list.back() *= set.last_stage;
    return list;
  };
  StepCosts costs;
  costs.time.forward = by_stage(set.forward);
  costs.time.input_grad = by_stage(set.input_grad);
  costs.time.weight_grad = by_stage(set.weight_grad);
  costs.time.backward = by_stage(set.input_grad + set.weight_grad);
  if (set.overlap > 0) {
    const std::vector<double> pairs = by_stage(set.overlap);
    costs.time.overlap.assign(pairs.begin(), pairs.end());
  }
  costs.time.link.latency = set.latency;
  return costs;
}

int Ticks(double time) { return static_cast<int>(std::lround(time / kTick)); }

Json CostSetJson(const CostSet& set) {
  return {{"name", set.name},
          {"F", Ticks(set.forward)},
          {"I", Ticks(set.input_grad)},
          {"W", Ticks(set.weight_grad)},
          {"B", Ticks(set.input_grad + set.weight_grad)},
          {"O", Ticks(set.overlap)},
          {"last", set.last_stage}};
}

// One row of an entry as text, in the form that the header describes.
class RowText {
 public:
  RowText(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

  void Add(const TimedAction& timed) {
    if (!second_of_pair_) {
      const int gap = Ticks(timed.start - free_since_);
      if (gap > 0) absl::StrAppend(&text_, gap);
      if (timed.action.joins_next) text_ += '*';
    }
    AddLetter(timed.action);
    free_since_ = timed.end;
    second_of_pair_ = timed.action.joins_next;
  }

  std::string Take() { return std::move(text_); }

 private:
  static constexpr std::string_view kLetters[] = {"FIWB", "fiwb", "GJXC", "gjxc"};

  void AddLetter(const schedule::Action& action) {
    const int stage = action.stage.value();
    const int chunk = stage >= num_ranks_ ? stage / num_ranks_ : stage != rank_;
    const char letter =
        kLetters[chunk][std::string_view("FIWB").find(schedule::Letter(action.kind))];
    const int microbatch = action.microbatch.value();
    if (microbatch != next_[letter]) absl::StrAppend(&text_, "@", microbatch);
    next_[letter] = microbatch + 1;
    text_ += letter;
  }

  const int rank_, num_ranks_;
  std::string text_;
  double free_since_ = 0;
  bool second_of_pair_ = false;
  std::map<char, int> next_;
};

std::string RowsText(const schedule::Timeline& timeline) {
  const int num_ranks = static_cast<int>(timeline.ranks.size());
  std::string text;
  for (int rank = 0; rank < num_ranks; ++rank) {
    RowText row(rank, num_ranks);
    for (const TimedAction& timed : timeline.ranks[rank]) row.Add(timed);
    absl::StrAppend(&text, rank == 0 ? "" : "\n", row.Take());
  }
  return text;
}

// Returns [makespan, bubble_fraction, span_bubble_fraction, peak, messages, lower bound,
// step_time]. Without a flush there is no bound, and the bubble is that of one step in a row of
// them.
Json Figures(const SimulatedSchedule& simulated) {
  const auto rounded = [](double value) { return std::round(value * 1e6) / 1e6; };
  const sim::Report& report = simulated.report;
  const bool flushes = simulated.bound.has_value();
  return {rounded(report.makespan),
          rounded(flushes ? report.bubble_fraction : report.step_bubble_fraction),
          rounded(report.span_bubble_fraction),
          report.peak_in_flight(),
          report.num_messages,
          flushes ? Json(rounded(simulated.bound->makespan)) : Json(nullptr),
          rounded(report.step_time)};
}

std::string ReasonOf(const absl::Status& status) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  return errors.empty() ? std::string(status.message())
                        : absl::StrCat(errors[0].field, " ", errors[0].rule);
}

class Atlas {
 public:
  absl::Status AddFamily(const schedule::Family& family) {
    Json chunks = Json::array({family.num_chunks});
    if (family.uses_chunks) chunks = kChunks;
    for (const auto& [ranks, microbatches] : kSizes) {
      for (const int num_chunks : chunks) {
        ASSIGN_OR_RETURN(entries_[absl::StrCat(std::string(family.name), " ", ranks, " ",
                                               microbatches, " ", num_chunks)],
                         Entry(family, {.num_ranks = ranks,
                                        .num_microbatches = microbatches,
                                        .num_chunks = num_chunks}));
      }
    }
    families_.push_back({{"name", family.name},
                         {"summary", family.summary},
                         {"reference", family.reference},
                         {"placement", schedule::PlacementName(family.placement)},
                         {"chunks", chunks}});
    return absl::OkStatus();
  }

  Json ToJson() const {
    Json costs = Json::array();
    for (const CostSet& set : kCostSets) costs.push_back(CostSetJson(set));
    return {{"tick", kTick},   {"costs", costs}, {"families", families_},
            {"sizes", kSizes}, {"rows", rows_},  {"entries", entries_}};
  }

 private:
  absl::StatusOr<Json> Entry(const schedule::Family& family, schedule::GenerateOptions sizes) {
    const int num_stages = family.placement == schedule::Placement::kBidirectional
                               ? sizes.num_ranks
                               : sizes.num_ranks * *sizes.num_chunks;
    Json by_costs = Json::array();
    for (const CostSet& set : kCostSets) {
      const StepCosts costs = CostsOf(set, num_stages);
      sizes.costs = costs.time;
      const absl::StatusOr<schedule::Schedule> schedule = schedule::Generate(family.name, sizes);
      if (!schedule.ok()) return Json(ReasonOf(schedule.status()));
      ASSIGN_OR_RETURN(const SimulatedSchedule simulated, SimulateSchedule(*schedule, costs, {}));
      Json figures = Figures(simulated);
      figures.push_back(RowsIndex(RowsText(simulated.timeline)));
      by_costs.push_back(std::move(figures));
    }
    return by_costs;
  }

  // The index of a text in `rows_`. Equal texts, which several sets of costs may have, are kept
  // once.
  int RowsIndex(const std::string& text) {
    const auto [found, is_new] = index_of_rows_.try_emplace(text, static_cast<int>(rows_.size()));
    if (is_new) rows_.push_back(text);
    return found->second;
  }

  Json families_ = Json::array(), rows_ = Json::array(), entries_ = Json::object();
  std::map<std::string, int> index_of_rows_;
};

}  // namespace

absl::StatusOr<Json> MakeAtlas() {
  Atlas atlas;
  for (const schedule::Family& family : schedule::Families()) {
    RETURN_IF_ERROR(atlas.AddFamily(family));
  }
  return atlas.ToJson();
}

Json AskedEntry(const schedule::Schedule& schedule, const SimulatedSchedule& simulated) {
  Json rows = Json::array();
  for (const auto& row : simulated.timeline.ranks) {
    Json actions = Json::array();
    for (const TimedAction& timed : row) {
      const char kind[] = {schedule::Letter(timed.action.kind), '\0'};
      actions.push_back({timed.action.stage.value(), kind, timed.action.microbatch.value(),
                         timed.start, timed.end, timed.action.joins_next});
    }
    rows.push_back(std::move(actions));
  }
  return {{"name", schedule.name},
          {"ranks", schedule.num_ranks()},
          {"microbatches", schedule.num_microbatches},
          {"figures", Figures(simulated)},
          {"rows", std::move(rows)}};
}

}  // namespace takt::cli
