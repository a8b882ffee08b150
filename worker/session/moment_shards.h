// SPDX-License-Identifier: Apache-2.0
// The moments of layers whose optimizer's state several ranks share, and the weights where they
// share these too, on their way to checkpoints and to copies in memory. These have whole ones,
// whoever has which shard of them, so the rank that writes a layer takes the shards of all. So a
// job resumes from them whether it shares or not.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/control/assignment.h"
#include "common/layout/shard.h"
#include "common/model/model.h"
#include "worker/checkpoint/layer_state.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::session {

// One caller at a time, which also calls nothing else of the group. All ranks that share make the
// same calls in the same order.
class MomentShards {
 public:
  // assignment: its program shares. group: RankGroups::sharers. All are borrowed for the object's
  // life; the group only by the calls.
  MomentShards(const control::Assignment& assignment, const train::ParameterStore& store,
               transport::Collective& group)
      : assignment_(assignment), store_(store), group_(group) {}

  // Returns where a parameter of a layer goes that this rank writes: all of it, in host memory.
  using PlaceOf =
      std::function<worker_checkpoint::ParameterTarget(LayerId layer, const model::Parameter&)>;
  // Copies the moments of all layers of the rank's stages, and the weights of which ranks keep
  // shards, to the ranks that write these layers (layout::WriterOf).  Blocks: until all ranks that
  // share do the same.
  // of: what the files of a checkpoint have, or all that the rank has. They differ where several
  // ranks that split layers have the same parameter.
  // Errors: as transport::Collective, and those of the device.
  enum class Of : std::uint8_t { kFiles, kRank };
  absl::Status Join(StepId step, const PlaceOf& place_of, Of of = Of::kFiles) const;

  // Copies moment 1 or 2 of the rank's rows of a table to the rank that writes the layer. rows: of
  // the store. to: has room for all of them on that rank, and is empty on the others.
  // Blocks and errors: as Join.
  absl::Status JoinRows(StepId step, const train::LayerParameters& rows,
                        const train::ParameterRef& table, int number, std::span<float> to) const;

 private:
  struct Parameter {
    const layout::ShardUnit& unit;
    const layout::FloatRun& run;  // its tensor in the unit
    const train::ParameterRef& ref;
  };
  absl::Status Pass(StepId step, const Parameter& parameter, int number, int writer,
                    std::span<float> to) const;
  // Returns the index in the group of the rank that writes the layer.
  int WriterOf(const train::LayerParameters& layer) const;

  const control::Assignment& assignment_;
  const train::ParameterStore& store_;
  transport::Collective& group_;
};

}  // namespace takt::session
