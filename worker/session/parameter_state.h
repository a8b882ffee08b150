// SPDX-License-Identifier: Apache-2.0
// Gives a rank's parameters the form that checkpoints need: grouped by the layer that owns them.
#pragma once

#include <vector>

#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "worker/checkpoint/layer_state.h"
#include "worker/train/parameter_store.h"

namespace takt::session {

// Returns the layers whose files this rank writes: those of which it holds a primary copy and is
// the layout::WriterOf. Tables of which it has some rows are left out (spread_tables.h). Of moments
// the views have the rank's shards (moment_shards.h). They are of the newest weights, and hold
// until the next update.
std::vector<worker_checkpoint::LayerState> WrittenState(train::ParameterStore& store, int replica,
                                                        int num_replicas);

// Returns likewise what this rank has of the layers, also what others have, too, where ranks split
// layers. Of a table a copy then has the rows of the rank alone.
std::vector<worker_checkpoint::LayerState> StateToCopy(const model::Model& model,
                                                       train::ParameterStore& store, int replica,
                                                       int num_replicas);

// Returns everything that this rank trains, including its copies of what other ranks own.
std::vector<worker_checkpoint::LayerTarget> LoadTargets(const model::Model& model,
                                                        train::ParameterStore& store);

}  // namespace takt::session
