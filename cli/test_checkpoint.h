// SPDX-License-Identifier: Apache-2.0
// Checkpoints as workers write them, of weights that lie in a Hugging Face folder.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/hf_folder.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/hf_config.h"
#include "common/model/hf_config_text.h"

namespace takt::cli {

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string GoldenModel(const std::string& name) {
  return absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", name);
}

// Writes DIRECTORY/step-N of the weights in the folder `source`, without moments, and returns its
// path.
inline std::string WriteCheckpoint(const std::string& directory, std::int64_t step,
                                   const std::string& source) {
  using checkpoint::FloatFormat;
  const std::string path =
      absl::StrCat(directory, "/", checkpoint::StepDirectoryName(StepId(step)));
  std::filesystem::create_directories(path);
  checkpoint::Manifest manifest{
      .job = "job", .generation = Generation(1), .step = StepId(step), .windows = step};
  manifest.plan_hash = std::string(32, '0');
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(path, "/", name), std::ios::binary) << text;
    manifest.files.push_back({.name = name,
                              .bytes = static_cast<std::int64_t>(text.size()),
                              .xxh3_128 = checkpoint::HashOf(std::as_bytes(std::span(text)))});
  };

  const std::string config_text = ReadFile(source + "/config.json");
  const model::Model model =
      model::BuildModel(model::ParseHfConfig(config_text, "config.json").value(), 1).value();
  const checkpoint::HfFolder weights = checkpoint::HfFolder::Open(source).value();
  std::vector<std::string> names;
  const int num_layers = static_cast<int>(model.layers.size());
  for (int i = 0; i < num_layers; ++i) {
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::Tensor> tensors;
    for (const model::Parameter& parameter : model.layers[static_cast<std::size_t>(i)].parameters) {
      const checkpoint::Tensor& tensor = *weights.Require(parameter.name, parameter.shape).value();
      std::vector<float>& of_tensor =
          values.emplace_back(static_cast<std::size_t>(parameter.elements()));
      checkpoint::ReadFloats(*checkpoint::FloatFormatOfDtype(tensor.dtype), tensor.bytes,
                             of_tensor);
      names.push_back(parameter.name);
      tensors.push_back({.name = parameter.name, .dtype = "F32", .shape = parameter.shape});
    }
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      tensors[k].bytes = std::as_bytes(std::span(values[k]));
    }
    write(checkpoint::ModelFile(LayerId(i), num_layers),
          checkpoint::FormatSafetensors(tensors, {{"format", "pt"}}));
  }
  write(checkpoint::kIndexFile, checkpoint::FormatIndex(model));
  write(checkpoint::kConfigFile,
        model::FormatHfConfig(model.config,
                              {.torch_dtype = checkpoint::TorchDtypeOf(weights.CommonFormat(names)),
                               .source = config_text}));
  std::ofstream(absl::StrCat(path, "/", checkpoint::kManifestFile))
      << checkpoint::FormatManifest(manifest).value();
  return path;
}

}  // namespace takt::cli
