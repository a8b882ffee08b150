// SPDX-License-Identifier: Apache-2.0
// Tests states in the memory of a device, which the host cannot read.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/layout.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/checkpoint/load.h"
#include "worker/checkpoint/snapshot.h"

namespace takt::worker_checkpoint {
namespace {

// Memory on a device for states that have the shapes of a state.
class DeviceState {
 public:
  DeviceState(backend::MemoryBackend& device, std::span<const LayerState> shapes)
      : device_(device) {
    for (const LayerState& layer : shapes) {
      LayerTarget& target = targets_.emplace_back(LayerTarget{.layer = layer.layer});
      for (const ParameterState& state : layer.parameters) {
        target.parameters.push_back({.parameter = state.parameter,
                                     .weight = Take(state.weight.size()),
                                     .m = Take(state.m.size()),
                                     .v = Take(state.v.size())});
      }
    }
  }

  std::span<const LayerTarget> targets() const { return targets_; }
  std::vector<LayerState> layers() const {
    std::vector<LayerState> layers;
    for (const LayerTarget& target : targets_) {
      LayerState& layer = layers.emplace_back(LayerState{.layer = target.layer});
      for (const ParameterTarget& p : target.parameters)
        layer.parameters.push_back({p.parameter, p.weight, p.m, p.v});
    }
    return layers;
  }

 private:
  std::span<float> Take(std::size_t floats) {
    buffers_.push_back(device_.Allocate(floats * sizeof(float), MemoryKind::kWeights).value());
    return buffers_.back().float_span();
  }

  backend::MemoryBackend& device_;
  std::vector<backend::Buffer> buffers_;
  std::vector<LayerTarget> targets_;
};

void ExpectSameBits(std::span<const float> a, std::span<const float> b) {
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(a), std::as_bytes(b)));
}

TEST(DeviceCheckpoint, IsLoadedToTheDeviceAndCopiedFromIt) {
  const testing::TemporaryDirectory directory;
  const testing::CheckpointJob job;
  const std::unique_ptr<FileSystem> files = CreatePosixFileSystem();
  ASSERT_TRUE(job.Save(*files, directory.path(), StepId(2), 1).ok());
  const auto step = checkpoint::StepFiles::Open(
      absl::StrCat(directory.path(), "/", checkpoint::StepDirectoryName(StepId(2))));
  ASSERT_TRUE(step.ok()) << step.status();

  const auto backends = backend::CreateDiscreteBackends({.lazy = true});
  const auto device = backends->CreateCompute().value();
  const std::vector<LayerId> all = job.AllLayers();
  const testing::ModelState saved = job.StateAt(StepId(2));
  const std::vector<LayerState> expected = saved.Layers(all);
  const DeviceState state(*device, expected);
  const absl::Status loaded =
      LoadLayers(*step, state.targets(),
                 {.num_layers = job.num_layers(), .threads = 3, .device = device.get()});
  ASSERT_TRUE(loaded.ok()) << loaded;

  absl::StatusOr<Snapshot> snapshot = Snapshot::Create(expected, device.get());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_TRUE(snapshot->Take(state.layers(), {.device = device.get()}).ok());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t j = 0; j < expected[i].parameters.size(); ++j) {
      const ParameterState& copy = snapshot->layers()[i].parameters[j];
      const ParameterState& original = expected[i].parameters[j];
      ExpectSameBits(copy.weight, original.weight);
      ExpectSameBits(copy.m, original.m);
      ExpectSameBits(copy.v, original.v);
    }
  }
}

}  // namespace
}  // namespace takt::worker_checkpoint
