// SPDX-License-Identifier: Apache-2.0
#include "tests/numerics/golden.h"

#include <cstring>
#include <fstream>
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
