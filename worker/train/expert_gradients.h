// SPDX-License-Identifier: Apache-2.0
// REDUCE_GRAD of a layer where ranks share experts (docs/adr/0013-experts-over-ranks.md).
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/model/expert_share.h"
#include "worker/backend/memory_backend.h"
#include "worker/backend/stream_link.h"
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
  backend::MemoryBackend* backend = nullptr;  // of the lane
};

// Sums the gradients of all parameters that are here, each over the microbatches of all replicas.
// Those of an expert are on its holders, each of which has them for `share.size` replicas, where
// model::GradientOfSource says. They are added one by one in the order of replicas, in which
// AllReduceSum adds where nobody shares experts, so the bits are the same. The first gradient of
// each expert gets the sum. In host memory the sum travels from holder to holder, and then from the
// last one to all. In a device's, the holders add terms (Collective::AllReduceTerms), so that the
// sums stay on streams.
// Thread: one caller at a time.
class GradientSums {
 public:
  static absl::StatusOr<std::unique_ptr<GradientSums>> Create(const GradientGroups& groups);

  // All is done on the stream of `replicas`, and before and after other work there. Blocks: if that
  // is null, until the other ranks do the same.  Errors: as the groups' and the backend's.
  absl::Status Sum(StepId step, const LayerParameters& layer);

 private:
  GradientSums(const GradientGroups& groups, backend::StreamLink there, backend::StreamLink back)
      : groups_(groups), there_(std::move(there)), back_(std::move(back)) {}
  absl::Status SumOfHost(StepId step, const LayerParameters& layer);
  absl::Status SumOfDevice(StepId step, const LayerParameters& layer);
  // Adds the gradients of an expert where this rank alone has it.
  absl::Status AddTerms(const ParameterRef& ref);

  const GradientGroups groups_;
  // Between the stream of `replicas` and the one that adds those of experts.
  backend::StreamLink there_, back_;
};

}  // namespace takt::train
