// SPDX-License-Identifier: Apache-2.0
// Records parts of a program that are short, so that the host gives them to the device in one call.
#pragma once

#include <cstddef>
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

// Returns whether the host would take about as long to give the ops of F on `stage` to a device as
// a fast device takes to do them.
bool IsShort(const model::Model& model, const mesh::Stage& stage);

// The buffers to which an F, I, W, B or O is bound.
struct PartBuffers {
  program::Op op{};
  StageId forward_stage{-1}, backward_stage{-1};  // -1: it has no such half
  StageBuffers forward, backward;

  bool operator==(const PartBuffers&) const = default;
  // Hashes only what differs most often.
  template <class H>
  friend H AbslHashValue(H h, const PartBuffers& part) {
    return H::combine(std::move(h), part.op, part.forward_stage.value(),
                      part.backward_stage.value(), part.forward.stash.base,
                      part.forward.stash.interleave.index, part.forward.view.targets,
                      part.backward.stash.base, part.backward.stash.interleave.index);
  }
};

// These may differ from run to run of a part. Parts with equal buffers and equal arguments have
// equal ops.
struct PartArguments {
  LossCall loss;
  bool accumulate = false;
  int weights = 0;  // ParameterStore::selected_place

  bool operator==(const PartArguments&) const = default;
  template <class H>
  friend H AbslHashValue(H h, const PartArguments& arguments) {
    return H::combine(std::move(h), arguments.loss.sum, arguments.loss.scale,
                      arguments.loss.expert_counts, arguments.accumulate, arguments.weights);
  }
};

// The recordings of a program. Thread class: the compute lane's, once the program is bound.
class Replays {
 public:
  // The recordings of all instructions that are bound to equal buffers, by their arguments. The ops
  // of new arguments run without a recording. When the arguments come again they are recorded, and
  // replayed from then on.
  class Part {
   public:
    // `ops` gives the ops of the part with these arguments to the recorder's backend, and does
    // nothing else.
    absl::Status Run(const PartArguments& arguments, absl::FunctionRef<absl::Status()> ops);

   private:
    friend class Replays;
    explicit Part(Replays& all) : all_(all) {}

    Replays& all_;
    // Null: these arguments came only once.
    absl::flat_hash_map<PartArguments, std::unique_ptr<backend::Recording>> recordings_;
  };

  // recorder: borrowed; null: nothing is recorded.
  explicit Replays(backend::Recorder* recorder) : recorder_(recorder) {}
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  // Called when instructions are bound. The part keeps its address for the life of this object.
  Part& PartOf(PartBuffers buffers);

  // From now on parts are recorded. Before this call, every shape must have been prepared for (or
  // computed once), and other lanes must have allocated what they need.
  void Start() { started_ = true; }

  // The most recordings that are kept. A device uses memory of its own for each.
  static constexpr std::size_t kMost = 512;

 private:
  // Returns null if the part cannot be recorded, or no more recordings are kept.
  std::unique_ptr<backend::Recording> Record(absl::FunctionRef<absl::Status()> ops);
  // Makes room to remember one more, if many arguments came once and never again (a loss scale that
  // differs from step to step).
  void Remember();

  backend::Recorder* const recorder_;
  bool started_ = false;
  absl::flat_hash_map<PartBuffers, std::unique_ptr<Part>> parts_;
  std::size_t num_remembered_ = 0;  // the number of arguments, of all parts
  std::size_t num_recordings_ = 0;
  std::size_t most_ = kMost;  // falls to num_recordings_ when one more fails
};

}  // namespace takt::train
