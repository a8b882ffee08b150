// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule_costs.h"

#include <cmath>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/job_input.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kLargestCostsFile = std::size_t{16} << 20;

// Of one stage.
struct StageCost {
  double forward = 1, input_grad = 1, weight_grad = 1;
  std::optional<double> backward;  // unset: input_grad + weight_grad

  // False: no such kind.
  bool Set(std::string_view kind, double value) {
    if (kind == "F")
      forward = value;
    else if (kind == "I")
      input_grad = value;
    else if (kind == "W")
      weight_grad = value;
    else if (kind == "B")
      backward = value;
    else
      return false;
    return true;
  }
};

absl::Status CostError(std::string field, std::string value, std::string rule) {
  return InvalidField({.field = std::move(field),
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = "see takt schedule simulate --help"});
}

bool IsCost(double value) { return std::isfinite(value) && value >= 0; }

absl::Status ParseCost(const std::string& text, StageCost& stage, double& latency) {
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double value = 0;
    if (pair.size() != 2 || !absl::SimpleAtod(pair[1], &value) || !IsCost(value)) {
      return CostError("--cost", std::string(part), "must be KIND=NUMBER, zero or more");
    }
    if (pair[0] == "comm") {
      latency = value;
    } else if (!stage.Set(pair[0], value)) {
      return CostError("--cost", std::string(part), "has a kind other than F, I, W, B and comm");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadStage(const json& entry, const std::string& field, StageCost& stage) {
  if (!entry.is_object()) return CostError(field, entry.dump(), "must be an object");
  for (const auto& [kind, value] : entry.items()) {
    if (!value.is_number() || !IsCost(value.get<double>())) {
      return CostError(absl::StrCat(field, ".", kind), value.dump(),
                       "must be a number, zero or more");
    }
    if (!stage.Set(kind, value.get<double>())) {
      return CostError(absl::StrCat(field, ".", kind), value.dump(),
                       "has a kind other than F, I, W and B");
    }
  }
  return absl::OkStatus();
}

// `stages` has one entry, for all, and gets one for each if the file says so.
absl::Status ReadCostsFile(const std::string& path, int num_stages, std::vector<StageCost>& stages,
                           double& latency) {
  ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, "--costs", kLargestCostsFile));
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return CostError("--costs", path, "must hold a JSON object");
  for (const auto& [key, value] : file.items()) {
    if (key == "latency" && value.is_number() && IsCost(value.get<double>())) {
      latency = value.get<double>();
    } else if (key == "stages" && value.is_array() &&
               (value.size() == 1 || value.size() == static_cast<std::size_t>(num_stages))) {
      const StageCost base = stages.front();
      stages.assign(value.size(), base);
      for (std::size_t i = 0; i < value.size(); ++i) {
        RETURN_IF_ERROR(ReadStage(value[i], absl::StrCat("stages[", i, "]"), stages[i]));
      }
    } else {
      return CostError(
          absl::StrCat(path, ": ", key), value.dump().substr(0, 80),
          absl::StrCat("must be latency (a number, zero or more) or stages (a list of 1 or ",
                       num_stages, " objects)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void DeclareCosts(CLI::App& command, CostOptions& options) {
  command
      .add_option("--cost", options.cost,
                  "Time of an action by kind, and of a message (comm); B is I+W unless given")
      ->type_name("F=1,I=1,W=1,B=2,comm=0");
  command.add_option("--costs", options.costs_file, "The same for each stage, from a file")
      ->type_name("FILE.json");
}

absl::StatusOr<cost::Costs> ReadCosts(const CostOptions& options, int num_stages) {
  std::vector<StageCost> stages(1);
  cost::Costs costs;
  RETURN_IF_ERROR(ParseCost(options.cost, stages.front(), costs.link.latency));
  if (!options.costs_file.empty()) {
    RETURN_IF_ERROR(ReadCostsFile(options.costs_file, num_stages, stages, costs.link.latency));
  }
  costs.forward.clear();
  costs.input_grad.clear();
  costs.weight_grad.clear();
  costs.backward.clear();
  for (const StageCost& stage : stages) {
    costs.forward.push_back(stage.forward);
    costs.input_grad.push_back(stage.input_grad);
    costs.weight_grad.push_back(stage.weight_grad);
    costs.backward.push_back(stage.backward.value_or(stage.input_grad + stage.weight_grad));
  }
  return costs;
}

}  // namespace takt::cli
