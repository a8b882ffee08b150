// SPDX-License-Identifier: Apache-2.0
// REDUCE_GRAD of a layer where ranks share experts (docs/adr/0013-experts-over-ranks.md).
#pragma once

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/model/expert_share.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::train {

// The groups over which gradients of a layer are summed. Their ranks are in the order of replicas,
// and of each replica the primary copy of the layer is first. All are borrowed.
struct GradientGroups {
  transport::Collective* replicas = nullptr;  // all that have the layer
  // Those of them that have the same experts as this rank. Null: this rank alone has them.
  transport::Collective* holders = nullptr;
  int copies = 1;  // of the layer in each replica
  model::ExpertShare share;
};

// Sums the gradients of all parameters that are here, each over the microbatches of all replicas.
// Those of an expert are on its holders, each of which has them for `share.size` replicas, one
// behind the other. They are added one by one in the order of replicas, in which AllReduceSum adds
// where nobody shares experts, so the bits are the same. The sum travels from holder to holder, and
// then from the last one to all. The first gradient of each expert gets it.
// Memory is the host's.  Blocks: until the other ranks do the same.  Errors: as the groups'.
absl::Status SumGradients(StepId step, const LayerParameters& layer, const GradientGroups& groups);

}  // namespace takt::train
