// SPDX-License-Identifier: Apache-2.0
// Measures W of several microbatches in one call, as jobs with `exact: false` run them, beside one
// call for each: GPT-2 blocks on one worker's threads, in turns.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/layout/parameter_layout.h"
#include "common/model/model.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/parameter_store.h"
#include "worker/train/stage.h"

namespace takt::bench::weight_grads_command {
namespace {

struct Options : CommonOptions {
  int hidden = 768, blocks = 2, threads = 1, turns = 15;
  std::string precision = "f32";
  std::vector<int> tokens = {16, 64, 256, 1024};
  std::vector<int> microbatches = {2, 4, 8};
};

absl::StatusOr<model::Model> ModelOf(const Options& options, int tokens) {
  const int heads = options.hidden / 64;
  return model::BuildModel(
      {.layers = options.blocks,
       .hidden = options.hidden,
       .heads = heads,
       .kv_heads = heads,
       .inner = 4 * options.hidden,
       .context = tokens,
       .positions = tokens,
       .vocab = 64},
      1,
      {.products = options.precision == "bf16" ? model::Precision::kBf16 : model::Precision::kF32});
}

// A stage of blocks that has run the I of some microbatches, which lie in neighbouring slots.
class DeferredWeightGrads {
 public:
  DeferredWeightGrads(const Options& options, const model::Model& model)
      : model_(model), last_layer_(1 + options.blocks) {}

  absl::Status Prepare(const Options& options, int microbatches) {
    ASSIGN_OR_RETURN(backend_, backend::CreateCpuBackend({.threads = options.threads}));
    std::vector<LayerId> layers;
    for (LayerId id(1); id < last_layer_; ++id) layers.push_back(id);
    ASSIGN_OR_RETURN(parameters_, train::ParameterStore::Create(
                                      model_, layout::LayOutParameters(model_, layers), *backend_));
    for (const train::LayerParameters& layer : parameters_->layers()) {
      for (const train::ParameterRef& ref : layer.refs)
        Fill({ref.weight, static_cast<std::size_t>(ref.parameter->elements())}, 0.02F);
    }
    RETURN_IF_ERROR(parameters_->Pack(*backend_));
    layout_ = layout::LayOutStage(model_, {StageId(0), PpRank(0), LayerId(1), last_layer_});
    ASSIGN_OR_RETURN(stash_, Allocate(microbatches * layout_.stash_bytes));
    ASSIGN_OR_RETURN(scratch_, Allocate(layout_.scratch_bytes));
    stage_.emplace(train::StageOptions{.model = model_,
                                       .layout = layout_,
                                       .parameters = *parameters_,
                                       .backend = *backend_,
                                       .scratch = scratch_.data()});
    return RunInputGrads(microbatches);
  }

  absl::Status OneByOne() {
    for (std::size_t m = 0; m < slots_.size(); ++m)
      RETURN_IF_ERROR(stage_->WeightGrad({&slots_[m], 1}, m > 0));
    return backend_->Synchronize();
  }
  absl::Status Together() {
    RETURN_IF_ERROR(stage_->WeightGrad(slots_, false));
    return backend_->Synchronize();
  }

 private:
  void Fill(std::span<float> values, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    for (float& value : values) value = normal(random_);
  }

  absl::Status RunInputGrads(int microbatches) {
    const std::int64_t floats = std::int64_t{model_.config.context} * model_.config.hidden;
    const auto messages = static_cast<std::size_t>(microbatches * floats);
    for (std::vector<float>* each : {&inputs_, &outputs_, &d_outputs_}) {
      each->resize(messages);
      Fill(*each, 1);
    }
    for (std::int64_t m = 0; m < microbatches; ++m) {
      train::StageBuffers& buffers = slots_.emplace_back();
      buffers.input = &inputs_[m * floats];
      buffers.output = &outputs_[m * floats];
      buffers.d_output = &d_outputs_[m * floats];
      buffers.d_input = buffers.output;
      buffers.stash = {stash_.data(), {microbatches, m}};
      RETURN_IF_ERROR(stage_->Forward(buffers, {}));
      RETURN_IF_ERROR(stage_->InputGrad(buffers));
    }
    return OneByOne();  // touches the memory for the first time
  }

  absl::StatusOr<backend::Buffer> Allocate(std::int64_t bytes) {
    return backend_->Allocate(static_cast<std::size_t>(bytes), MemoryKind::kStash);
  }

  const model::Model& model_;
  const LayerId last_layer_;
  std::mt19937 random_{1};
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<train::ParameterStore> parameters_;
  layout::StageLayout layout_;
  std::optional<train::Stage> stage_;
  backend::Buffer stash_, scratch_;
  std::vector<float> inputs_, outputs_, d_outputs_;
  std::vector<train::StageBuffers> slots_;
};

absl::StatusOr<nlohmann::json> Measure(const Options& options, int tokens, int microbatches) {
  ASSIGN_OR_RETURN(const model::Model model, ModelOf(options, tokens));
  DeferredWeightGrads stage(options, model);
  RETURN_IF_ERROR(stage.Prepare(options, microbatches));
  const auto seconds = [](auto run) -> absl::StatusOr<double> {
    const std::int64_t begin = Clock::Real().SteadyNanos();
    RETURN_IF_ERROR(run());
    return static_cast<double>(Clock::Real().SteadyNanos() - begin) * 1e-9;
  };
  std::vector<double> apart, together, ratios;
  for (int turn = 0; turn < options.turns; ++turn) {
    ASSIGN_OR_RETURN(apart.emplace_back(), seconds([&] { return stage.OneByOne(); }));
    ASSIGN_OR_RETURN(together.emplace_back(), seconds([&] { return stage.Together(); }));
    ratios.push_back(together.back() / apart.back());
  }
  return nlohmann::json{{"tokens", tokens},
                        {"microbatches", microbatches},
                        {"apart_seconds", Median(apart)},
                        {"together_seconds", Median(together)},
                        {"ratio", Median(ratios)}};
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{"tokens", "tokens"},
                               {"microbatches", "microbatches"},
                               {"apart ms", "apart_seconds", 10, 3, 1e3},
                               {"together ms", "together_seconds", 11, 3, 1e3},
                               {"ratio", "ratio", 6, 3}});
  for (const int tokens : options.tokens) {
    for (const int microbatches : options.microbatches) {
      ASSIGN_OR_RETURN(const nlohmann::json row, Measure(options, tokens, microbatches));
      table.Add(row);
    }
  }
  table.End({{"precision", options.precision}, {"threads", options.threads}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "weight-grads",
      "W of several microbatches together (exact: false) beside one after the other",
      [](CLI::App& command, Options& options) {
        command.add_option("--hidden", options.hidden, "Width of a GPT-2 block, a multiple of 64")
            ->check(CLI::Range(64, 16384));
        command.add_option("--blocks", options.blocks, "Of the stage")->check(CLI::Range(1, 64));
        command.add_option("--tokens", options.tokens, "Of a microbatch")->delimiter(',');
        command.add_option("--microbatches", options.microbatches, "Whose W are put off")
            ->delimiter(',');
        command.add_option("--precision", options.precision, "f32 or bf16")
            ->check(CLI::IsMember({"f32", "bf16"}));
        command.add_option("--threads", options.threads, "Of the worker")
            ->check(CLI::Range(1, 1024));
        command.add_option("--turns", options.turns, "Pairs of runs")->check(CLI::Range(1, 100000));
      },
      Run);
}

}  // namespace takt::bench::weight_grads_command
