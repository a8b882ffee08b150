// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/layout.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace takt::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-", kPartialInfix = ".partial-",
                           kReplacedInfix = ".replaced-";
constexpr char kClaimMark = '+';        // no job's name has it
constexpr std::size_t kStepDigits = 8;  // at least; so names sort like numbers

bool AllDigits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

}  // namespace

std::string StepDirectoryName(StepId step) {
  return absl::StrFormat("%s%0*d", kStepPrefix, static_cast<int>(kStepDigits), step.value());
}

std::string PartialDirectoryName(StepId step, std::string_view job, Generation generation) {
  return absl::StrCat(StepDirectoryName(step), std::string(kPartialInfix), std::string(job), "-",
                      generation.value());
}

std::string ClaimedDirectoryName(StepId step, std::string_view job, Generation generation,
                                 std::string_view token) {
  return absl::StrCat(PartialDirectoryName(step, job, generation), std::string(1, kClaimMark),
                      std::string(token));
}

std::string ReplacedDirectoryName(StepId step, int number) {
  return absl::StrCat(StepDirectoryName(step), std::string(kReplacedInfix), number);
}

std::optional<StepDirectory> ParseStepDirectoryName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  const std::size_t digits = std::min(name.find('.'), name.size());
  std::int64_t step = 0;
  if (digits < kStepDigits || !AllDigits(name.substr(0, digits)) ||
      !absl::SimpleAtoi(std::string(name.substr(0, digits)), &step) || step < 1) {
    return std::nullopt;
  }
  // Refuses "step-000000100", which is not the name of step 100.
  if (digits > kStepDigits && name.front() == '0') return std::nullopt;
  const std::string_view rest = name.substr(digits);
  if (rest.empty()) return StepDirectory{.step = StepId(step)};
  for (const auto& [infix, kind] : {std::pair(kPartialInfix, StepDirectoryKind::kPartial),
                                    std::pair(kReplacedInfix, StepDirectoryKind::kReplaced)}) {
    if (rest.starts_with(infix) && rest.size() > infix.size()) {
      return StepDirectory{StepId(step), kind, std::string(rest.substr(infix.size()))};
    }
  }
  return std::nullopt;
}

std::optional<PartialWriter> WriterOf(std::string_view suffix) {
  suffix = suffix.substr(0, suffix.find(kClaimMark));
  const std::size_t dash = suffix.rfind('-');
  std::int64_t generation = 0;
  if (dash == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(suffix.substr(dash + 1)), &generation)) {
    return std::nullopt;
  }
  return PartialWriter{.job = std::string(suffix.substr(0, dash)),
                       .generation = Generation(generation)};
}

std::string ModelFile(LayerId layer, int num_layers) {
  return ShardName("model", layer.value(), num_layers);
}

std::string OptimizerFile(LayerId layer, int num_layers) {
  return ShardName("optimizer", layer.value(), num_layers);
}

bool IsOptimizerFile(std::string_view name) { return name.starts_with("optimizer-"); }

std::string FirstMomentName(std::string_view parameter) {
  return absl::StrCat("exp_avg.", std::string(parameter));
}

std::string SecondMomentName(std::string_view parameter) {
  return absl::StrCat("exp_avg_sq.", std::string(parameter));
}

std::string LastUpdateName(std::string_view parameter) {
  return absl::StrCat("last_update.", std::string(parameter));
}

std::string FormatIndex(const model::Model& model) {
  const int num_layers = static_cast<int>(model.layers.size());
  WeightMap weight_map;
  for (int i = 0; i < num_layers; ++i) {
    for (const model::Parameter& parameter : model.layers[static_cast<std::size_t>(i)].parameters) {
      weight_map[parameter.name] = ModelFile(LayerId(i), num_layers);
    }
  }
  return FormatHfIndex(weight_map,
                       model.num_parameters() * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace takt::checkpoint
