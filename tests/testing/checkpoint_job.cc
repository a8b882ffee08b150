// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/checkpoint_job.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/load.h"
#include "worker/checkpoint/save.h"

namespace takt::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kJob[] = "small-gpt";

std::vector<float> Bits(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = std::bit_cast<float>(static_cast<std::uint32_t>(seed >> 32));
  }
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::error_code error;
  const fs::path parent =
      fs::is_directory("/dev/shm", error) ? fs::path("/dev/shm") : fs::temp_directory_path();
  path_ = (parent / "takt-XXXXXX").string();
  TAKT_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  fs::remove_all(path_, error);
}

ModelState::ModelState(const model::Model& model, std::uint64_t seed) : model_(model) {
  for (const model::Layer& layer : model.layers) {
    std::vector<Values>& values = layers_.emplace_back();
    for (const model::Parameter& parameter : layer.parameters) {
      const std::int64_t count = parameter.elements();
      seed += 3;
      values.push_back({.weight = Bits(count, seed),
                        .m = Bits(count, seed + 1),
                        .v = Bits(count, seed + 2),
                        .last_update = Bits(parameter.fed_back ? count : 0, ~seed)});
    }
  }
}

std::vector<worker_checkpoint::LayerState> ModelState::Layers(
    std::span<const LayerId> layers) const {
  std::vector<worker_checkpoint::LayerState> states;
  for (const LayerId id : layers) {
    const auto index = static_cast<std::size_t>(id.value());
    worker_checkpoint::LayerState& state =
        states.emplace_back(worker_checkpoint::LayerState{.layer = id});
    for (std::size_t i = 0; i < layers_[index].size(); ++i) {
      const Values& values = layers_[index][i];
      state.parameters.push_back({.parameter = &model_.layers[index].parameters[i],
                                  .weight = values.weight,
                                  .m = values.m,
                                  .v = values.v,
                                  .last_update = values.last_update});
    }
  }
  return states;
}

std::vector<worker_checkpoint::LayerTarget> ModelState::Targets(std::span<const LayerId> layers) {
  std::vector<worker_checkpoint::LayerTarget> targets;
  for (const LayerId id : layers) {
    const auto index = static_cast<std::size_t>(id.value());
    worker_checkpoint::LayerTarget& target =
        targets.emplace_back(worker_checkpoint::LayerTarget{.layer = id});
    for (std::size_t i = 0; i < layers_[index].size(); ++i) {
      Values& values = layers_[index][i];
      target.parameters.push_back({.parameter = &model_.layers[index].parameters[i],
                                   .weight = values.weight,
                                   .m = values.m,
                                   .v = values.v,
                                   .last_update = values.last_update});
    }
  }
  return targets;
}

bool ModelState::operator==(const ModelState& other) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (std::size_t j = 0; j < layers_[i].size(); ++j) {
      const Values &a = layers_[i][j], &b = other.layers_[i][j];
      if (!SameBits(a.weight, b.weight) || !SameBits(a.m, b.m) || !SameBits(a.v, b.v) ||
          !SameBits(a.last_update, b.last_update))
        return false;
    }
  }
  return true;
}

CheckpointJob::CheckpointJob()
    : model_(model::BuildModel({.layers = 2,
                                .hidden = 4,
                                .heads = 2,
                                .kv_heads = 2,
                                .inner = 16,
                                .context = 3,
                                .positions = 3,
                                .vocab = 7},
                               1)
                 .value()) {}

std::vector<LayerId> CheckpointJob::AllLayers() const {
  std::vector<LayerId> layers;
  for (int i = 0; i < num_layers(); ++i) layers.emplace_back(i);
  return layers;
}

absl::StatusOr<std::string> CheckpointJob::SaveShards(
    worker_checkpoint::FileSystem& files, const std::string& directory, StepId step,
    std::span<const std::vector<LayerId>> ranks) const {
  const ModelState state = StateAt(step);
  const std::string partial =
      absl::StrCat(directory, "/", checkpoint::PartialDirectoryName(step, kJob, generation));
  const std::vector<worker_checkpoint::TextFile> texts = {
      {checkpoint::kConfigFile, "{}\n"}, {checkpoint::kIndexFile, checkpoint::FormatIndex(model_)}};
  checkpoint::Manifest manifest{.job = kJob,
                                .generation = generation,
                                .step = step,
                                .windows = 8 * step.value(),
                                .seed = 1234};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<worker_checkpoint::LayerState> layers = state.Layers(ranks[rank]);
    worker_checkpoint::Shards shards{
        .directory = partial, .num_layers = num_layers(), .layers = layers};
    if (rank == 0) shards.texts = texts;
    ASSIGN_OR_RETURN(const std::vector<checkpoint::FileEntry> entries,
                     worker_checkpoint::SaveShards(files, shards));
    manifest.files.insert(manifest.files.end(), entries.begin(), entries.end());
  }
  return checkpoint::FormatManifest(manifest);
}

absl::Status CheckpointJob::Save(worker_checkpoint::FileSystem& files, const std::string& directory,
                                 StepId step, int keep) const {
  const std::vector<std::vector<LayerId>> one_rank = {AllLayers()};
  ASSIGN_OR_RETURN(const std::string manifest, SaveShards(files, directory, step, one_rank));
  RETURN_IF_ERROR(worker_checkpoint::Publish(files, directory, manifest, {.token = "a"}).status());
  worker_checkpoint::Retain(files, directory, {.step = step, .keep = keep}).status().IgnoreError();
  return absl::OkStatus();
}

absl::Status CheckpointJob::Check(const std::string& step_directory) const {
  ASSIGN_OR_RETURN(const checkpoint::StepFiles step, checkpoint::StepFiles::Open(step_directory));
  RETURN_IF_ERROR(step.VerifyAll());
  ModelState loaded(model_, 0);
  const std::vector<LayerId> all = AllLayers();
  RETURN_IF_ERROR(
      worker_checkpoint::LoadLayers(step, loaded.Targets(all), {.num_layers = num_layers()}));
  if (loaded == StateAt(step.manifest().step)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(step_directory, " holds another state"));
}

checkpoint::ChosenStep CheckpointJob::Newest(const std::string& directory) const {
  return checkpoint::ChooseStep(checkpoint::ListSteps(directory).value(), StepId(),
                                [&](const checkpoint::ListedStep& step) {
                                  return Check(absl::StrCat(directory, "/", step.name));
                                });
}

}  // namespace takt::testing
