// SPDX-License-Identifier: Apache-2.0
#include "common/plan/memory.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/regions.h"
#include "common/model/llama.h"
#include "common/model/stage_layout.h"
#include "common/plan/gpu_scratch.h"
#include "common/program/slot_bytes.h"

namespace takt::plan {
namespace {

using program::Program;
using program::Slot;

constexpr std::int64_t kFloatBytes = 4;

// Of a takt-worker that holds no job, as measured (docs/memory.md), with what its threads, kernels
// and channels take beside.
constexpr std::int64_t kProcessBytes = std::int64_t{44} << 20;

class Prediction {
 public:
  explicit Prediction(const MemoryInputs& inputs)
      : inputs_(inputs), emulated_(inputs.model.config.family == model::Family::kEmulated) {}

  MemoryBytes Run() {
    if (!emulated_) {
      AddParameters();
      AddScratch();
      if (inputs_.device == config::DeviceKind::kCuda) {
        bytes_[MemoryKind::kScratch] += GpuScratchOf(inputs_.model, MicrobatchesOfW()).total();
      }
      if (inputs_.saves) AddSnapshot();
    }
    AddSlots(inputs_.program);
    if (inputs_.validation != nullptr) AddSlots(*inputs_.validation);
    bytes_[MemoryKind::kProcess] = kProcessBytes;
    return bytes_;
  }

 private:
  void Add(MemoryKind kind, std::int64_t bytes) { bytes_[kind] += AllocatedBytes(bytes); }

  std::vector<LayerId> HeldLayers() const {
    const std::set<StageId> held = program::HeldStages(inputs_.program);
    std::vector<LayerId> layers;
    for (const mesh::Stage& stage : inputs_.partition) {
      if (!held.contains(stage.id)) continue;
      for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) layers.push_back(id);
    }
    std::sort(layers.begin(), layers.end());
    return layers;
  }

  // As ParameterStore: each use of a parameter has a gradient, and in bf16 packed matrices; weights
  // and moments are there once.
  void AddParameters() {
    const bool in_bf16 = inputs_.model.precisions.products == model::Precision::kBf16;
    std::set<std::string> here;
    for (const LayerId id : HeldLayers()) {
      const model::Layer& layer = inputs_.model.layers[id.value()];
      Regions gradients, state;
      const auto add = [&](const model::Parameter& parameter) {
        gradients.Add(kFloatBytes * parameter.elements());
        if (here.insert(parameter.name).second) {
          state.Add(kFloatBytes * parameter.elements());
        }
        if (in_bf16 && layer.MultipliesBy(parameter)) {
          Add(MemoryKind::kWeights,
              program::NumWeightVersions(inputs_.program) * model::PackedBytes(parameter));
        }
      };
      for (const model::Parameter& parameter : layer.parameters) add(parameter);
      for (const std::string& name : layer.tied_parameters) add(*inputs_.model.Find(name));
      Add(MemoryKind::kGradients, gradients.size());
      Add(MemoryKind::kWeights, program::NumWeightVersions(inputs_.program) * state.size());
      Add(MemoryKind::kOptimizer, state.size());
      Add(MemoryKind::kOptimizer, state.size());
    }
  }

  // Weights and moments of the layers that the rank writes, of that replica which has most.
  void AddSnapshot() {
    std::vector<std::int64_t> by_replica(static_cast<std::size_t>(inputs_.dp_size));
    for (const mesh::Stage& stage : inputs_.partition) {
      if (stage.pp_rank != inputs_.program.pp_rank) continue;
      for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
        for (const model::Parameter& parameter : inputs_.model.layers[id.value()].parameters) {
          by_replica[id.value() % inputs_.dp_size] += 3 * kFloatBytes * parameter.elements();
        }
      }
    }
    Add(MemoryKind::kSnapshot, *std::max_element(by_replica.begin(), by_replica.end()));
  }

  void AddScratch() {
    const std::set<StageId> held = program::HeldStages(inputs_.program);
    std::int64_t scratch = 0;
    for (const mesh::Stage& stage : inputs_.partition) {
      if (!held.contains(stage.id)) continue;
      scratch = std::max(scratch, model::LayOutStage(inputs_.model, stage.first_layer,
                                                     stage.last_layer, stage.recompute)
                                      .scratch_bytes);
    }
    Add(MemoryKind::kScratch, scratch);
    if (const std::int64_t table = model::RotaryTableElements(inputs_.model.config); table > 0) {
      Add(MemoryKind::kScratch, table * kFloatBytes);
    }
  }

  int MicrobatchesOfW() const {
    int most = 1;
    for (const program::Instruction& instruction : inputs_.program.body) {
      if (instruction.op == program::Op::kWeightGrad)
        most = std::max(most, instruction.num_microbatches);
    }
    return most;
  }

  void AddSlots(const Program& program) {
    for (const Slot& slot : program.slots) {
      const MemoryKind kind = program::MemoryKindOf(slot.kind);
      if (kind == MemoryKind::kMessages) Add(kind, slot.bytes);
      if (emulated_) continue;
      if (kind == MemoryKind::kStash) Add(kind, slot.bytes);
      if (kind == MemoryKind::kTokens) Add(kind, TokenBytes(program));
    }
  }

  // Ids and targets, i32, and how many are scored. Without a flush every microbatch has a slot.
  std::int64_t TokenBytes(const Program& program) const {
    const std::int64_t rows = std::int64_t{inputs_.model.microbatch} * inputs_.model.config.context;
    const int microbatches = program::IsAsynchronous(program) ? 1 : program.num_microbatches;
    return 8 + microbatches * 2 * rows * 4;
  }

  const MemoryInputs& inputs_;
  const bool emulated_;  // passes messages and has nothing else
  MemoryBytes bytes_;
};

}  // namespace

MemoryBytes PredictMemory(const MemoryInputs& inputs) { return Prediction(inputs).Run(); }

}  // namespace takt::plan
