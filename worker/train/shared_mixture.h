// SPDX-License-Identifier: Apache-2.0
// The experts of one block that several ranks share, over the tensors of the block's stash and
// scratch (common/model/shared_mixture.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "common/layout/stash_layout.h"
#include "common/model/model.h"
#include "common/model/shared_mixture.h"
#include "worker/backend/backend.h"
#include "worker/train/expert_exchange.h"
#include "worker/train/expert_meetings.h"
#include "worker/train/layer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/shared_experts.h"
#include "worker/train/stash_view.h"

namespace takt::train {

// It has no state except what it points to. Memory is the backend's.
class SharedMixture {
 public:
  // experts: the matrices of this rank's first expert, which those of the others follow: gate, up
  // and down of each. All is borrowed.
  SharedMixture(const LayerOptions& options, const ParameterRef* experts);

  int experts_here() const { return experts_here_; }

  // Computes what the last product reads, as Experts::Forward does.
  absl::Status Forward(const RecomputeCall& call, const StashView& s,
                       const SharedExperts::Routed& routed, bool products) const;
  // Adds the experts of each token to call.output, which has the block's addend.
  absl::Status Output(const ForwardCall& call, const StashView& s,
                      const SharedExperts::Routed& routed) const;
  // Computes the gradients by weights, and adds to the gradient of the norm's output.
  // begin_d_norm: as of SharedExperts::InputGrad.
  absl::Status InputGrad(const InputGradCall& call, const StashView& s,
                         const SharedExperts::Routed& routed,
                         const SharedExperts::Backward& backward,
                         absl::FunctionRef<absl::Status()> begin_d_norm) const;
  // Computes W of one microbatch, and frees what it had beyond the stash.
  absl::Status WeightGrad(backend::Backend& backend, const StashView& s, bool accumulate) const;

 private:
  SharedExperts Over(backend::Backend& backend) const;
  std::int32_t* OffsetsOf(const StashView& s) const;
  // Returns what came in F.
  ExpertMeetings::Arrived& ArrivedOf(const StashView& s) const;
  const ExpertArrivals& ArrivalsOf(const StashView& s) const { return *ArrivedOf(s).rows; }
  // Returns where the rows that came are: in the stash, or if they are too many for it, elsewhere.
  SharedExperts::Stash StashOf(const StashView& s) const;
  // Makes room elsewhere for rows that are too many, or frees what the last microbatch left there.
  absl::Status PrepareStash(backend::Backend& backend, const StashView& s) const;
  // Allocates memory for rows that have no room.
  absl::StatusOr<backend::Buffer> Allocate(backend::Backend& backend, std::int64_t rows,
                                           std::int64_t columns, MemoryKind kind) const;
  // Calls `use` with scratch, in which everything has room.
  absl::Status WithRoom(backend::Backend& backend, std::byte* scratch, std::int64_t received,
                        absl::FunctionRef<absl::Status(const SharedExperts::Scratch&)> use) const;
  absl::Status MeetForShapes(int times) const;

  const model::Mixture& mixture_;
  const model::ExpertShare share_;
  ExpertMeetings& meetings_;
  const ParameterRef* const experts_;
  const int experts_here_;
  const std::int64_t hidden_;
  const std::int64_t room_;                  // rows that the stash has room for
  const std::size_t first_stash_;            // of ArrivalsStash
  const std::vector<std::int64_t> scratch_;  // offsets of ArrivalsScratch
  const std::int64_t d_product_;             // offset in scratch
};

}  // namespace takt::train
