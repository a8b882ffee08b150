// SPDX-License-Identifier: Apache-2.0
// Parts of a program that are recorded when they are short, so that the host gives them to the
// device in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"
#include "worker/backend/recorder.h"
#include "worker/train/stage.h"

namespace takt::train {

// Whether the host would take about as long to give the ops of F on `stage` to a device as a fast
// device takes to do them.
bool IsShort(const model::Model& model, const mesh::Stage& stage);

// All that the ops of an F, I, W, B or O hang on, and that may be another at the next call. Parts
// of equal arguments give equal ops.
struct PartArguments {
  program::Op op{};
  StageId forward_stage{-1}, backward_stage{-1};  // -1: it has no such half
  StageBuffers forward, backward;                 // without the microbatch's number
  LossCall loss;
  bool accumulate = false;
  int weights = 0;  // ParameterStore::selected_place

  bool operator==(const PartArguments&) const = default;
  // By what differs most often.
  template <class H>
  friend H AbslHashValue(H h, const PartArguments& part) {
    return H::combine(std::move(h), part.op, part.forward_stage.value(),
                      part.backward_stage.value(), part.forward.stash.base,
                      part.forward.stash.interleave.index, part.forward.view.targets,
                      part.backward.stash.base, part.backward.stash.interleave.index, part.loss.sum,
                      part.accumulate, part.weights);
  }
};

// A part with arguments that are new runs as it is; when they come again it is recorded, and
// replayed from then on. Thread: the compute lane's.
class Replays {
 public:
  // recorder: borrowed; null: everything runs as it is.
  explicit Replays(backend::Recorder* recorder) : recorder_(recorder) {}

  // Parts are recorded from now on. Before, every shape must have been prepared for (or computed
  // once), and what other lanes allocate must be there.
  void Start() { started_ = true; }

  // `part` gives the ops of `arguments` to the recorder's backend, and does nothing else.
  absl::Status Run(const PartArguments& arguments, absl::FunctionRef<absl::Status()> part);

  // Recordings that are kept: a device has memory of its own for each.
  static constexpr std::size_t kMost = 512;

 private:
  void Remember(const PartArguments& arguments);

  backend::Recorder* const recorder_;
  bool started_ = false;
  // Null: seen once.
  absl::flat_hash_map<PartArguments, std::unique_ptr<backend::Recording>> parts_;
  std::size_t num_recordings_ = 0;
  std::size_t most_ = kMost;  // what there were when one more failed
};

}  // namespace takt::train
