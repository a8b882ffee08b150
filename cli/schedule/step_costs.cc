// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/step_costs.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/base/input_file.h"
#include "cli/base/text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::cli {

const char kCostsFileHelp[] =
    "FILE.json of --costs, every key optional, times in one unit of your choice:\n"
    "  {\"stages\": [{\"F\": 1, \"I\": 1, \"W\": 1, \"B\": 2, \"O\": 3,\n"
    "               \"output_bytes\": 0, \"stash_bytes\": 0,\n"
    "               \"reduction\": 0}, ...],      one for all, or one a stage\n"
    "   \"latency\": 0, \"seconds_per_byte\": 0,  of every message\n"
    "   \"links\": [{\"from\": 0, \"to\": 1, \"latency\": 0, \"seconds_per_byte\": 0}, ...],\n"
    "   \"tied_reduction\": 0, \"optimizer\": 0,\n"
    "   \"measured\": \"what, where\"}          seconds that were measured: what comes out is said "
    "to be a prediction,\n"
    "                                        and O is not used, as jobs run the halves apart\n"
    "B is I+W and O, an overlapped forward and backward, is F+B unless given. reduction is the sum "
    "of\n"
    "a stage's gradients over its replicas, tied_reduction that of the embedding over its two "
    "uses,\n"
    "optimizer the update on each rank: each begins when what it needs is complete.";

namespace {

using nlohmann::json;

constexpr std::size_t kLargestCostsFile = std::size_t{16} << 20;
// Times and bytes between these keep ratios finite, and sums of bytes exact in 64 bits.
constexpr double kLeast = 1e-30, kMost = 1e15;
constexpr char kRange[] = "0, or from 1e-30 to 1e15";

// The costs of one stage.
struct StageCost {
  std::optional<double> forward = 1, input_grad = 1, weight_grad = 1;
  std::optional<double> backward;  // unset: input_grad + weight_grad
  std::optional<double> overlap;   // unset: forward + backward
  double reduction = 0;
  std::int64_t output_bytes = 0, stash_bytes = 0;
  std::string kinds;  // the kinds that the file names

  double Backward() const { return backward.value_or(*input_grad + *weight_grad); }
  bool Names(char kind) const { return kinds.find(kind) != std::string::npos; }

  // Returns false if there is no such kind.
  bool Set(std::string_view kind, double value) {
    for (const auto& [name, time] : {std::pair("F", &forward),
                                     {"I", &input_grad},
                                     {"W", &weight_grad},
                                     {"B", &backward},
                                     {"O", &overlap}}) {
      if (kind != name) continue;
      *time = value;
      return true;
    }
    return false;
  }

  bool SetInFile(std::string_view key, double value) {
    if (key == "reduction") {
      reduction = value;
      return true;
    }
    if (!Set(key, value)) return false;
    kinds.append(key);
    return true;
  }

  // The caller has checked a byte count. Returns false if there is no such key.
  bool SetBytes(std::string_view key, double value) {
    if (key != "output_bytes" && key != "stash_bytes") return false;
    (key == "output_bytes" ? output_bytes : stash_bytes) = static_cast<std::int64_t>(value);
    return true;
  }
};

absl::Status CostError(std::string field, std::string value, std::string rule) {
  return InvalidField({.field = std::move(field),
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = "see takt schedule simulate --help"});
}

bool IsCost(double value) { return value == 0 || (value >= kLeast && value <= kMost); }

absl::Status ParseCost(const std::string& text, StageCost& stage, StepCosts& step) {
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double value = 0;
    if (pair.size() != 2 || !absl::SimpleAtod(pair[1], &value) || !IsCost(value)) {
      return CostError("--cost", std::string(part), absl::StrCat("must be KIND=NUMBER: ", kRange));
    }
    if (pair[0] == "comm") {
      step.time.link.latency = value;
    } else if (pair[0] == "S" || pair[0] == "T") {
      (pair[0] == "S" ? step.time.vocabulary_forward : step.time.vocabulary_backward) = {value};
      step.spreads_vocabulary = true;
    } else if (!stage.Set(pair[0], value)) {
      return CostError("--cost", std::string(part),
                       "has a kind other than F, I, W, B, O, S, T and comm");
    }
  }
  return absl::OkStatus();
}

// Reads a costs file key by key. If a value is not a number, the error names its key.
class CostsFile {
 public:
  explicit CostsFile(std::string path) : path_(std::move(path)) {}

  // `stages` has one entry, for all stages. It gets as many entries as the file has.
  absl::Status Read(std::vector<StageCost>& stages, cost::Costs& costs, std::string& measured) {
    ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path_, "--costs", kLargestCostsFile));
    const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!file.is_object()) return CostError("--costs", path_, "must hold a JSON object");
    RETURN_IF_ERROR(ReadLinkCost(file, "", costs.link));  // the default of all links
    for (const auto& [key, value] : file.items()) {
      if (key == "stages") {
        RETURN_IF_ERROR(ReadStages(value, stages));
      } else if (key == "links") {
        RETURN_IF_ERROR(ReadLinks(value, costs));
      } else if (key == "tied_reduction" || key == "optimizer") {
        RETURN_IF_ERROR(CheckNumber(key, value));
        (key == "optimizer" ? costs.optimizer[0] : costs.tied_reduction) = value.get<double>();
      } else if (key == "measured") {
        if (!value.is_string()) return Wrong(key, value, "must be a text");
        measured = value.get<std::string>();
        if (measured.empty()) return Wrong(key, value, "must say what was measured");
      } else if (key != "latency" && key != "seconds_per_byte") {
        return Wrong(key, value,
                     "is none of stages, latency, seconds_per_byte, links, tied_reduction, "
                     "optimizer and measured");
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Wrong(const std::string& field, const json& value, std::string rule) const {
    return CostError(absl::StrCat(path_, ": ", field), value.dump().substr(0, 80), std::move(rule));
  }

  absl::Status CheckList(const std::string& field, const json& value) const {
    const bool is_list = value.is_array() && !value.empty() &&
                         std::all_of(value.begin(), value.end(),
                                     [](const json& entry) { return entry.is_object(); });
    return is_list ? absl::OkStatus() : Wrong(field, value, "must be a list of one object or more");
  }

  absl::Status CheckNumber(const std::string& field, const json& value) const {
    if (value.is_number() && IsCost(value.get<double>())) return absl::OkStatus();
    return Wrong(field, value, absl::StrCat("must be a number: ", kRange));
  }

  // Reads the keys of one link, or of all links if `prefix` is empty.
  absl::Status ReadLinkCost(const json& entry, const std::string& prefix,
                            cost::LinkCost& link) const {
    for (const auto& [key, target] : {std::pair("latency", &link.latency),
                                      std::pair("seconds_per_byte", &link.seconds_per_byte)}) {
      if (!entry.contains(key)) continue;
      RETURN_IF_ERROR(CheckNumber(absl::StrCat(prefix, key), entry[key]));
      *target = entry[key].get<double>();
    }
    return absl::OkStatus();
  }

  absl::Status ReadStages(const json& list, std::vector<StageCost>& stages) const {
    RETURN_IF_ERROR(CheckList("stages", list));
    stages.assign(list.size(), StageCost(stages.front()));
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (const auto& [key, value] : list[i].items()) {
        const std::string field = absl::StrCat("stages[", i, "].", key);
        RETURN_IF_ERROR(CheckNumber(field, value));
        const double number = value.get<double>();
        if (stages[i].SetInFile(key, number)) continue;
        if (!stages[i].SetBytes(key, number)) {
          return Wrong(field, value,
                       "is none of F, I, W, B, O, reduction, output_bytes and stash_bytes");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadLinks(const json& list, cost::Costs& costs) const {
    RETURN_IF_ERROR(CheckList("links", list));
    const std::set<std::string> known = {"from", "to", "latency", "seconds_per_byte"};
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string prefix = absl::StrCat("links[", i, "].");
      for (const auto& [key, value] : list[i].items()) {
        if (known.count(key) == 0) {
          return Wrong(prefix + key, value, "is none of from, to, latency and seconds_per_byte");
        }
      }
      int ends[2];
      for (const auto& [key, end] : {std::pair("from", &ends[0]), std::pair("to", &ends[1])}) {
        const json rank = list[i].value(key, json());
        if (!rank.is_number_integer() || rank < 0 || rank >= schedule::kMaxActions) {
          return Wrong(prefix + key, rank, "must be a rank, counted from 0");
        }
        *end = rank.get<int>();
      }
      cost::LinkCost link = costs.link;
      RETURN_IF_ERROR(ReadLinkCost(list[i], prefix, link));
      if (!costs.links.insert({{PpRank(ends[0]), PpRank(ends[1])}, link}).second) {
        return Wrong(absl::StrCat("links[", i, "]"), list[i], "is a link that was given before");
      }
    }
    return absl::OkStatus();
  }

  const std::string path_;
};

// Checks that every kind was measured on every stage that runs it, B perhaps as I and W. Otherwise
// the time of a missing kind would come from --cost, as that of S and T does.
absl::Status CheckMeasured(const StepCosts& costs, const schedule::Schedule& schedule) {
  if (schedule.spreads_vocabulary && !costs.spreads_vocabulary) {
    return CostError("--cost", "neither S nor T",
                     absl::StrCat("must have both, which ", schedule.name, " runs"));
  }
  const std::vector<std::string>& kinds = costs.measured_kinds;
  for (const schedule::Row& row : schedule.ranks) {
    for (const schedule::Action& action : row) {
      if (schedule::IsOfVocabulary(action.kind)) continue;
      const std::size_t stage = kinds.size() == 1 ? 0 : action.stage.value();
      const auto has = [&](char kind) { return kinds[stage].find(kind) != std::string::npos; };
      const char kind = schedule::Letter(action.kind);
      if (has(kind) || (kind == 'B' && has('I') && has('W'))) continue;
      return InvalidField(
          {.field = absl::StrCat("stages[", stage, "]"),
           .value = absl::StrCat("measured ", kinds[stage].empty() ? "nothing" : kinds[stage]),
           .rule = absl::StrFormat("must have %c, which %s runs there", kind, schedule.name),
           .fix = "add its time, or measure with a schedule that runs it outside of pairs"});
    }
  }
  return absl::OkStatus();
}

}  // namespace

void DeclareCosts(CLI::App& command, CostOptions& options) {
  command
      .add_option("--cost", options.cost,
                  "Time of an action by kind, of an overlapped pair (O) and of a message (comm); B "
                  "is I+W, O is F+B unless given; S or T spreads the vocabulary over all ranks")
      ->type_name("F=1,I=1,W=1,B=2,comm=0");
  command
      .add_option("--costs", options.costs_file,
                  "The same and more for each stage and link, from a file")
      ->type_name("FILE.json");
}

absl::StatusOr<StepCosts> ReadCosts(const CostOptions& options) {
  std::vector<StageCost> stages(1);
  StepCosts step;
  RETURN_IF_ERROR(ParseCost(options.cost, stages.front(), step));
  if (!options.costs_file.empty()) {
    RETURN_IF_ERROR(CostsFile(options.costs_file).Read(stages, step.time, step.measured));
    for (const StageCost& stage : stages) step.measured_kinds.push_back(stage.kinds);
  }
  cost::Costs& time = step.time;
  for (auto* list :
       {&time.forward, &time.input_grad, &time.weight_grad, &time.backward, &time.reduction}) {
    list->clear();
  }
  step.output_bytes.clear();
  step.stash_bytes.clear();
  // What was measured predicts jobs, which run the halves of pairs apart.
  const bool overlap =
      step.measured.empty() &&
      std::ranges::any_of(stages, [](const StageCost& stage) { return stage.overlap.has_value(); });
  for (StageCost& stage : stages) {
    // Of a backward that was only measured whole, nothing is known to end before it.
    if (!step.measured.empty() && stage.Names('B') && !(stage.Names('I') && stage.Names('W'))) {
      stage.input_grad = stage.backward;
      stage.weight_grad = 0;
    }
    time.forward.push_back(*stage.forward);
    time.input_grad.push_back(*stage.input_grad);
    time.weight_grad.push_back(*stage.weight_grad);
    time.backward.push_back(stage.Backward());
    time.reduction.push_back(stage.reduction);
    if (overlap) time.overlap.push_back(stage.overlap);
    step.output_bytes.push_back(stage.output_bytes);
    step.stash_bytes.push_back(stage.stash_bytes);
  }
  return step;
}

std::string PredictionText(const StepCosts& costs, int num_ranks) {
  if (costs.measured.empty()) return "";
  return absl::StrFormat(
      "a prediction, in seconds, for %d ranks each on a device of its own; its times are of: %s\n",
      num_ranks, Harmless(costs.measured));
}

absl::Status CheckCostsFit(const StepCosts& costs, const schedule::Schedule& schedule) {
  const std::size_t given = costs.time.forward.size();
  if (given != 1 && given != static_cast<std::size_t>(schedule.num_stages)) {
    return CostError(
        "stages", absl::StrCat(given, " entries"),
        absl::StrCat("must have 1 entry, or one for each of the ", schedule.num_stages, " stages"));
  }
  if (!costs.measured.empty()) RETURN_IF_ERROR(CheckMeasured(costs, schedule));
  for (const auto& [ends, link] : costs.time.links) {
    const int last = std::max(ends.first.value(), ends.second.value());
    if (last < schedule.num_ranks() && ends.first != ends.second) continue;
    return CostError(
        "links", absl::StrCat(ends.first.value(), " to ", ends.second.value()),
        absl::StrCat("must join two different ranks, of 0 to ", schedule.num_ranks() - 1));
  }
  return absl::OkStatus();
}

}  // namespace takt::cli
