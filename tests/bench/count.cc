// SPDX-License-Identifier: Apache-2.0
// Estimates training on a GPU without one: launches and bytes of each model are counted, and a
// roofline turns them into seconds.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/model_counts.h"
#include "tests/bench/table.h"

namespace takt::bench::count_command {
namespace {

// These make the roofline of an H200 SXM. None of them was measured with this program: they are
// shares of the data sheet's figures that published kernels reach, and docs/gpu-checks.md measures
// them.
constexpr double kPeakFlops = 989.5e12;              // dense bf16; MFU is relative to this
constexpr double kProductFlops = 0.72 * kPeakFlops;  // of a step's products, at its clocks
constexpr double kAttentionFlops = 400e12;           // causal, forward
constexpr double kAttentionGradientFlops = 230e12;   // causal, deterministic
constexpr double kBytesPerSecond = 0.85 * 4.8e12;    // of elementwise kernels
constexpr double kSecondsOfLaunch = 2e-6;  // between a kernel and the next, while the host is ahead

// A microbatch of tests/bench/beside_torch.py, the microbatches of its step, and our goals.
struct Shape {
  int microbatch, context, microbatches;
  double goal_mfu;
};
const std::map<std::string, Shape>& Shapes() {
  static const std::map<std::string, Shape> shapes = {
      {"gpt2-124m", {64, 1024, 8, 0.45}},  {"gpt2-355m", {32, 1024, 16, 0.50}},
      {"gpt2-774m", {32, 1024, 16, 0.53}}, {"gpt2-1558m", {16, 1024, 32, 0.55}},
      {"llama-1b", {4, 4096, 16, 0.60}},   {"llama-8b-slice", {2, 4096, 16, 0.66}},
  };
  return shapes;
}
constexpr double kGoalLaunches = 24, kGoalBytes = 40;  // of a block

struct Options : CommonOptions {
  std::vector<std::string> models = {"gpt2-124m",  "gpt2-355m", "gpt2-774m",
                                     "gpt2-1558m", "llama-1b",  "llama-8b-slice"};
  std::string residual = "f32";
  int tensor = 1;
};

double Seconds(const OpCount& count) {
  return count.product_flops / kProductFlops + count.attention_flops / kAttentionFlops +
         count.attention_gradient_flops / kAttentionGradientFlops +
         count.elementwise_bytes / kBytesPerSecond + count.launches * kSecondsOfLaunch;
}

double Mfu(const OpCount& count) { return count.flops() / Seconds(count) / kPeakFlops; }

absl::Status AddModel(const std::string& name, const Options& chosen, Table& table) {
  const Shape& shape = Shapes().at(name);
  const TrainJobOptions options{.model = name,
                                .device = "cuda",
                                .precision = "bf16",
                                .residual = chosen.residual,
                                .batch = 2 * shape.microbatch,
                                .microbatch = shape.microbatch,
                                .context = shape.context};
  ASSIGN_OR_RETURN(const ModelCounts counts, CountModel(options, chosen.tensor));
  const double hidden = ModelOf(options).hidden;
  const auto row = [&](const char* kind, const OpCount& count, double mfu) {
    return nlohmann::json{{"model", name},
                          {"kind", kind},
                          {"launches_per_layer", count.launches},
                          {"elementwise_bytes_per_token_and_hidden",
                           count.elementwise_bytes / counts.tokens / hidden},
                          {"estimated_mfu", mfu},
                          {"meetings_per_layer", nullptr},
                          {"goal_launches", nullptr},
                          {"goal_bytes", nullptr},
                          {"goal_mfu", nullptr},
                          {"holds", nullptr},
                          {"estimated_step_seconds", nullptr}};
  };
  table.Add(row("F", counts.forward, Mfu(counts.forward)));
  table.Add(row("I", counts.input_grad, Mfu(counts.input_grad)));
  table.Add(row("W", counts.weight_grad, Mfu(counts.weight_grad)));
  OpCount step = counts.microbatch * shape.microbatches;
  step += counts.rest;
  nlohmann::json total = row("total", counts.Block(), Mfu(step));
  total["estimated_step_seconds"] = Seconds(step);
  if (chosen.tensor > 1) {  // the goals are of whole layers
    total["meetings_per_layer"] = counts.meetings;
    table.Add(total);
    return absl::OkStatus();
  }
  total["goal_launches"] = kGoalLaunches;
  total["goal_bytes"] = kGoalBytes;
  total["goal_mfu"] = shape.goal_mfu;
  total["holds"] = total["launches_per_layer"] <= kGoalLaunches &&
                   total["elementwise_bytes_per_token_and_hidden"] <= kGoalBytes &&
                   total["estimated_mfu"] >= shape.goal_mfu;
  table.Add(total);
  return absl::OkStatus();
}

absl::Status Count(const Options& options) {
  Table table(
      options.json(),
      {{.heading = "model", .key = "model", .width = 14},
       {.heading = "kind", .key = "kind", .width = 5},
       {.heading = "launches", .key = "launches_per_layer"},
       {.heading = "goal", .key = "goal_launches"},
       {.heading = "bytes / (token h)",
        .key = "elementwise_bytes_per_token_and_hidden",
        .precision = 1},
       {.heading = "goal", .key = "goal_bytes"},
       {.heading = "MFU %", .key = "estimated_mfu", .precision = 1, .scale = 100},
       {.heading = "goal", .key = "goal_mfu", .scale = 100},
       {.heading = "step ms", .key = "estimated_step_seconds", .precision = 1, .scale = 1e3},
       {.heading = "meetings", .key = "meetings_per_layer"}});
  for (const std::string& model : options.models) RETURN_IF_ERROR(AddModel(model, options, table));
  table.End({{"estimate", true},
             {"roofline",
              {{"peak_flops", kPeakFlops},
               {"product_flops_per_second", kProductFlops},
               {"attention_flops_per_second", kAttentionFlops},
               {"attention_gradient_flops_per_second", kAttentionGradientFlops},
               {"bytes_per_second", kBytesPerSecond},
               {"seconds_of_launch", kSecondsOfLaunch}}}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "count",
      "Launches and bytes of a block on a GPU, counted without one, and the step that a roofline "
      "estimates from them",
      [](CLI::App& command, Options& options) {
        std::vector<std::string> names;
        for (const auto& [name, shape] : Shapes()) names.push_back(name);
        command.add_option("--model", options.models, "which models, separated by commas")
            ->delimiter(',')
            ->check(CLI::IsMember(names));
        command.add_option("--residual", options.residual, "Of what layers pass on")
            ->check(CLI::IsMember({"f32", "bf16"}));
        command
            .add_option(
                "--tensor", options.tensor,
                "Ranks that split each layer: counts of one, whose meetings take no time in "
                "the estimate")
            ->check(CLI::IsMember({1, 2, 4, 8}));
      },
      Count);
}

}  // namespace takt::bench::count_command
