// SPDX-License-Identifier: Apache-2.0
// Writes Hugging Face folders for tests, and checkpoints of their weights in the form that workers
// write.
#pragma once

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/hf_folder.h"
#include "common/checkpoint/hf_index.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/hf_config.h"
#include "common/model/hf_config_text.h"
#include "gtest/gtest.h"

namespace takt::cli {

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string GoldenModel(const std::string& name) {
  return absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", name);
}

// Writes DIRECTORY/step-N of the weights in the folder `source`, without moments, and returns its
// path. job_spec: as Manifest::job_spec.
inline std::string WriteCheckpoint(const std::string& directory, std::int64_t step,
                                   const std::string& source, const std::string& job_spec = "{}") {
  const std::string path =
      absl::StrCat(directory, "/", checkpoint::StepDirectoryName(StepId(step)));
  std::filesystem::create_directories(path);
  checkpoint::Manifest manifest{
      .job = "job", .generation = Generation(1), .step = StepId(step), .windows = step};
  manifest.plan_hash = std::string(32, '0');
  manifest.job_spec = job_spec;
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

// Writes `folder`: the golden model in another format and divided into `shards` files, with a zero
// of each sign in every tensor.
inline void WriteModelFolder(const std::string& folder, const std::string& golden,
                             checkpoint::FloatFormat format, int shards) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(golden + "/config.json", folder + "/config.json");
  const std::string file = ReadFile(golden + "/model.safetensors");
  const auto view =
      checkpoint::SafetensorsView::Parse(std::as_bytes(std::span(file)), "golden").value();
  std::vector<std::vector<checkpoint::Tensor>> parts(static_cast<std::size_t>(shards));
  std::deque<std::vector<std::byte>> bytes;
  checkpoint::WeightMap weight_map;
  for (std::size_t i = 0; i < view.tensors().size(); ++i) {
    checkpoint::Tensor tensor = view.tensors()[i];
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    checkpoint::ReadFloats(checkpoint::FloatFormat::kF32, tensor.bytes, values);
    values[0] = 0.0F;
    values[1] = -0.0F;
    bytes.emplace_back(values.size() * checkpoint::BytesOf(format));
    checkpoint::WriteFloats(format, values, bytes.back());
    tensor.dtype = checkpoint::DtypeOf(format);
    tensor.bytes = bytes.back();
    const int part = static_cast<int>(i) % shards;
    weight_map[tensor.name] = checkpoint::ShardName("model", part, shards);
    parts[static_cast<std::size_t>(part)].push_back(tensor);
  }
  for (int part = 0; part < shards; ++part) {
    const std::string name =
        shards == 1 ? checkpoint::kWeightsFile : checkpoint::ShardName("model", part, shards);
    std::ofstream(absl::StrCat(folder, "/", name), std::ios::binary)
        << checkpoint::FormatSafetensors(parts[static_cast<std::size_t>(part)]);
  }
  if (shards > 1) {
    std::ofstream(absl::StrCat(folder, "/", checkpoint::kIndexFile))
        << checkpoint::FormatHfIndex(weight_map, 0);
  }
}

// Expects every tensor of the model to be the same in both folders, to the byte.
inline void ExpectSameTensors(const std::string& a, const std::string& b) {
  const auto config = model::ParseHfConfig(ReadFile(a + "/config.json"), "c").value();
  const auto model = model::BuildModel(config, 1).value();
  const auto one = checkpoint::HfFolder::Open(a).value();
  const auto other = checkpoint::HfFolder::Open(b).value();
  for (const model::Parameter* parameter : model.AllParameters()) {
    const checkpoint::Tensor* x = one.Find(parameter->name);
    const checkpoint::Tensor* y = other.Find(parameter->name);
    ASSERT_TRUE(x != nullptr && y != nullptr) << parameter->name;
    EXPECT_EQ(x->dtype, y->dtype) << parameter->name;
    EXPECT_EQ(x->shape, y->shape) << parameter->name;
    EXPECT_TRUE(std::ranges::equal(x->bytes, y->bytes)) << parameter->name;
  }
}

}  // namespace takt::cli
