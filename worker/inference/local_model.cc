// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/local_model.h"

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/layout/parameter_layout.h"
#include "common/model/hf_config.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/initial_weights.h"

namespace takt::inference {
namespace {

// Lays out the weights of all layers. Gradients have no memory: their tensors are there because
// they say which layers use which parameters.
layout::Section LayOutWeights(const model::Model& model) {
  std::vector<LayerId> layers;
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    layers.emplace_back(static_cast<std::int32_t>(i));
  const layout::Section all = layout::LayOutParameters(model, layers);
  layout::Section weights{.name = all.name};
  const int nothing = weights.Allocate(MemoryKind::kGradients, 0);
  std::map<int, int> places;  // an allocation of `all` -> that of `weights`
  for (layout::Tensor tensor : all.tensors) {
    if (tensor.role == layout::Role::kGradient) {
      tensor.allocation = nothing;
      tensor.offset = 0;
      tensor.bytes = 0;
    } else if (tensor.role == layout::Role::kWeight) {
      const auto [place, is_new] = places.try_emplace(tensor.allocation, 0);
      if (is_new) {
        const layout::Allocation& from =
            all.allocations[static_cast<std::size_t>(tensor.allocation)];
        place->second = weights.Allocate(from.kind, from.bytes);
      }
      tensor.allocation = place->second;
    } else {
      continue;
    }
    weights.tensors.push_back(tensor);
  }
  return weights;
}

// Returns the error as one of the folder that the user named.
absl::Status OfCheckpoint(const std::string& folder, const absl::Status& status) {
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  FieldError error{.field = "CHECKPOINT",
                   .value = folder,
                   .rule = std::string(status.message()),
                   .fix =
                       "give a directory of checkpoints, or a Hugging Face folder of a family "
                       "that docs/interop.md lists"};
  if (!errors.empty()) {
    const auto& [field, value, rule, fix, where] = errors.front();
    const bool of_folder = field == "model.init_from";  // then the value is the folder
    error.rule =
        of_folder
            ? rule
            : absl::StrCat(field, value.empty() ? "" : absl::StrCat(" \"", value, "\""), " ", rule);
  }
  return absl::IsInvalidArgument(status) ? InvalidField(std::move(error))
                                         : UnusableField(std::move(error));
}

absl::StatusOr<model::ModelConfig> ReadConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  return model::ParseHfConfig(text, path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalModel>> LocalModel::Open(const std::string& folder,
                                                             int threads) {
  const absl::StatusOr<model::ModelConfig> config = ReadConfig(folder);
  if (!config.ok()) return OfCheckpoint(folder, config.status());
  absl::StatusOr<std::unique_ptr<LocalModel>> model = Create(*config, folder, threads);
  if (model.ok() || absl::IsResourceExhausted(model.status())) return model;
  return OfCheckpoint(folder, model.status());
}

absl::StatusOr<std::unique_ptr<LocalModel>> LocalModel::MakeRandom(const model::ModelConfig& config,
                                                                   int threads) {
  return Create(config, /*folder=*/"", threads);
}

absl::StatusOr<std::unique_ptr<LocalModel>> LocalModel::Create(const model::ModelConfig& config,
                                                               const std::string& folder,
                                                               int threads) {
  ASSIGN_OR_RETURN(model::Model model, model::BuildModel(config, /*microbatch=*/1));
  auto local = std::unique_ptr<LocalModel>(new LocalModel(std::move(model)));
  ASSIGN_OR_RETURN(local->backend_, backend::CreateCpuBackend({.threads = threads}));
  ASSIGN_OR_RETURN(
      local->weights_,
      train::ParameterStore::Create(local->model_, LayOutWeights(local->model_), *local->backend_));
  config::JobSpec job;
  job.model = config;
  job.init_from = folder;
  RETURN_IF_ERROR(
      train::InitializeWeights(job, /*data_root=*/"/", *local->weights_, *local->backend_));
  return local;
}

std::int64_t LocalModel::bytes_per_token() const {
  std::int64_t elements = 0;
  for (const model::Layer& layer : model_.layers) {
    if (layer.kind == model::LayerKind::kEmbedding) continue;
    for (const model::Parameter& parameter : layer.parameters) elements += parameter.elements();
    for (const std::string& name : layer.tied_parameters) elements += model_.Find(name)->elements();
    if (!model::HasExperts(layer.kind)) continue;
    const model::Mixture& mixture = *config().mixture;
    const std::int64_t of_expert = std::int64_t{3} * config().hidden * mixture.inner;
    elements -= (mixture.experts - mixture.chosen) * of_expert;
  }
  return elements * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace takt::inference
