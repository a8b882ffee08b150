// SPDX-License-Identifier: Apache-2.0
// A small job that only saves and loads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/checkpoint/directory.h"
#include "common/model/model.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::testing {

// A directory that is removed when this object ends. It is on a file system in memory where there
// is one, since such tests sync often.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Weights and moments of every layer of a model.
class ModelState {
 public:
  // All bits follow from `seed` and the position. NaNs and denormals are among the values. model:
  // borrowed.
  ModelState(const model::Model& model, std::uint64_t seed);

  // Views into this object.
  std::vector<worker_checkpoint::LayerState> Layers(std::span<const LayerId> layers) const;
  std::vector<worker_checkpoint::LayerTarget> Targets(std::span<const LayerId> layers);

  // Bit for bit.
  bool operator==(const ModelState& other) const;

 private:
  struct Values {
    std::vector<float> weight, m, v, last_update;
  };
  const model::Model& model_;
  std::vector<std::vector<Values>> layers_;
};

class CheckpointJob {
 public:
  CheckpointJob();

  const model::Model& model() const { return model_; }
  int num_layers() const { return static_cast<int>(model_.layers.size()); }
  std::vector<LayerId> AllLayers() const;

  // Returns the state after a step.
  ModelState StateAt(StepId step) const {
    return {model_, static_cast<std::uint64_t>(step.value())};
  }

  // Each rank writes the layers named for it, rank 0 also the texts. Returns the text of the
  // manifest.
  absl::StatusOr<std::string> SaveShards(worker_checkpoint::FileSystem& files,
                                         const std::string& directory, StepId step,
                                         std::span<const std::vector<LayerId>> ranks) const;
  // One rank writes everything and publishes it. Then it removes all but the newest `keep`
  // checkpoints, as far as the disk lets it.
  absl::Status Save(worker_checkpoint::FileSystem& files, const std::string& directory, StepId step,
                    int keep) const;
  // Returns an error unless the checkpoint is verified and is bit for bit the state of its step.
  absl::Status Check(const std::string& step_directory) const;
  // Returns the newest step that passes Check.
  checkpoint::ChosenStep Newest(const std::string& directory) const;

  Generation generation = Generation(1);

 private:
  model::Model model_;
};

}  // namespace takt::testing
