// SPDX-License-Identifier: Apache-2.0
#include "tests/numerics/golden.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <stdexcept>

#include "common/checkpoint/safetensors.h"
#include "common/model/hf_config.h"
#include "gtest/gtest.h"

namespace takt::numerics {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

config::JobSpec GoldenJob(const GoldenCase& golden, const nlohmann::json& train) {
  config::JobSpec job;
  job.name = golden.name;
  job.model =
      model::ParseHfConfig(ReadFile(golden.directory + "/config.json"), "config.json").value();
  job.model.context = train["sequence_length"];
  job.init_from = golden.directory;
  job.train = {{.path = golden.directory + "/train_batches.safetensors",
                .format = config::DataFormat::kSafetensors}};
  if (train.contains("packed")) {
    job.documents = config::Documents::kSeparate;
    job.document_end = train["packed"]["document_end"].get<int>();  // where they are one stream
  }
  // No config.json of these families can say so.
  if (train.contains("router") && train["router"].contains("scores")) {
    job.model.mixture->scores = model::RouterScores::kSigmoid;
    job.model.mixture->bias_rate = train["router"]["bias_rate"];
  }
  job.global_batch = train["batch_size"];
  job.microbatch = 1;
  job.adamw = {.learning_rate = 1e-3,
               .beta1 = 0.9,
               .beta2 = 0.95,
               .epsilon = 1e-8,
               .weight_decay = 0.1,
               .clip_norm = 1.0};
  job.lr_schedule = {.warmup_steps = 3,
                     .decay = config::LrDecay::kCosine,
                     .decay_steps = 10,
                     .min_learning_rate = 1e-4};
  job.steps = 10;
  return job;
}

GoldenCase Load(const std::string& name) {
  GoldenCase golden;
  golden.name = name;
  golden.directory = std::string(TAKT_SOURCE_DIR) + "/tests/golden/models/" + name;
  const nlohmann::json train = nlohmann::json::parse(ReadFile(golden.directory + "/train.json"));
  golden.job = GoldenJob(golden, train);
  for (const auto& step : train["steps"]) {
    golden.steps.push_back({.learning_rate = step["lr"],
                            .loss = step["loss"],
                            .grad_norm = step["grad_norm"],
                            .scored = step["counted_targets"]});
    if (step.contains("expert_tokens")) {
      golden.steps.back().expert_tokens =
          step["expert_tokens"].get<std::vector<std::vector<std::int64_t>>>();
    }
  }
  golden.final_loss = train["final_loss"];
  for (const auto& range : train["zero_gradients"]) {
    golden.zero_gradients.push_back({.tensor = range["tensor"],
                                     .begin = range["start"],
                                     .end = range["stop"]});  // of vectors: elements
  }
  golden.expected = ReadTensors(golden.directory + "/expected.safetensors");
  golden.initial_weights = ReadTensors(golden.directory + "/model.safetensors");
  golden.final_weights = ReadTensors(golden.directory + "/final_weights.safetensors");
  return golden;
}

}  // namespace

const Tolerances& TolerancesOf(config::Precision precision) {
  static constexpr Tolerances kF32 = {.loss_abs = 1e-5,
                                      .grad_norm_rel = 1e-5,
                                      .logits_abs = 2e-5,
                                      .logits_l2 = 1e-5,
                                      .activations_abs = 3e-5,
                                      .activations_l2 = 1e-5,
                                      .activation_gradients_l2 = 1e-5,
                                      .gradients_max = 3e-5,
                                      .gradients_l2 = 2e-5,
                                      .gradients_l2_overall = 1e-5,
                                      .zero_gradients_abs = 1e-7,
                                      .updates_l2_overall = 4e-4,
                                      .updates_l2 = 5e-3,
                                      .key_bias_updates_l2 = 2e-2,
                                      .weights_abs = 5e-4,
                                      .weights_at_zero_gradients_abs = 1e-3};
  static constexpr Tolerances kBf16 = {.loss_abs = 2e-2,
                                       .grad_norm_rel = 3e-2,
                                       .logits_abs = 0.15,
                                       .logits_l2 = 3e-2,
                                       .activations_abs = 0.2,
                                       .activations_l2 = 3e-2,
                                       .activation_gradients_l2 = 5e-2,
                                       .gradients_max = 0.15,
                                       .gradients_l2 = 8e-2,
                                       .gradients_l2_overall = 5e-2,
                                       .zero_gradients_abs = 1e-4,
                                       .updates_l2_overall = 0.1,
                                       .updates_l2 = 0.3,
                                       .key_bias_updates_l2 = std::numeric_limits<double>::max(),
                                       .weights_abs = 1.1e-2,
                                       .weights_at_zero_gradients_abs = 1.1e-2};
  return precision == config::Precision::kBf16 ? kBf16 : kF32;
}

Tensors ReadTensors(const std::string& path) {
  const std::string file = ReadFile(path);
  const auto view = checkpoint::SafetensorsView::Parse(std::as_bytes(std::span(file)), path);
  if (!view.ok()) throw std::runtime_error(view.status().ToString());
  Tensors tensors;
  for (const checkpoint::Tensor& tensor : view->tensors()) {
    if (tensor.dtype != "F32") continue;
    std::vector<float>& values = tensors[tensor.name];
    values.resize(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return tensors;
}

GoldenCase LoadGolden(const std::string& name) {
  try {
    return Load(name);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return {};
  }
}

}  // namespace takt::numerics
