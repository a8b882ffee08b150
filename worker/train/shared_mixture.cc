// SPDX-License-Identifier: Apache-2.0
#include "worker/train/shared_mixture.h"

#include "common/base/status.h"
#include "common/model/llama.h"

namespace takt::train {
namespace {

using model::ArrivalsScratch;
using model::ArrivalsStash;
using model::LlamaBlockScratch;
using model::LlamaBlockStash;

// Says how often ranks meet before the last product, after it, and in I.
constexpr int kMeetingsOfForward = 2, kMeetingsOfOutput = 1, kMeetingsOfInputGrad = 3;

std::int64_t RowsOf(const model::Model& model) {
  return std::int64_t{model.microbatch} * model.config.context;
}

float* FloatsAt(std::byte* scratch, std::int64_t offset) {
  return reinterpret_cast<float*>(scratch + offset);
}

}  // namespace

SharedMixture::SharedMixture(const LayerOptions& options, const ParameterRef* experts)
    : mixture_(*options.model.config.mixture),
      share_(options.model.experts),
      meetings_(*options.experts),
      experts_(experts),
      experts_here_(mixture_.experts / share_.size),
      hidden_(options.model.config.hidden),
      room_(model::RoomForArrivals(RowsOf(options.model), mixture_.chosen)),
      first_stash_(options.place.stash.size() - ArrivalsStash::kNumTensors),
      scratch_(options.place.scratch.end() - std::int64_t{ArrivalsScratch::kNumTensors},
               options.place.scratch.end()),
      d_product_(options.place.scratch[LlamaBlockScratch::kDProduct]) {}

SharedExperts SharedMixture::Over(backend::Backend& backend) const {
  SharedExperts::Options options{.meetings = &meetings_,
                                 .backend = &backend,
                                 .experts = mixture_.experts,
                                 .hidden = hidden_,
                                 .inner = mixture_.inner,
                                 .here = {}};
  const auto matrix = [](const ParameterRef& ref) {
    return SharedExperts::Matrix{
        .weight = ref.weight, .packed = ref.packed, .packed_transposed = ref.packed_transposed};
  };
  for (int e = 0; e < experts_here_; ++e) {
    const ParameterRef* const first = experts_ + std::int64_t{3} * e;
    options.here.push_back(
        {.gate = matrix(first[0]), .up = matrix(first[1]), .down = matrix(first[2])});
  }
  return SharedExperts(options);
}

std::span<std::int32_t> SharedMixture::CountsOf(const StashView& s) const {
  return {reinterpret_cast<std::int32_t*>(s[first_stash_ + ArrivalsStash::kCounts]),
          static_cast<std::size_t>(std::int64_t{share_.size} * mixture_.experts)};
}

void SharedMixture::PrepareStash(const StashView& s, std::int64_t received) const {
  const std::int32_t* const key = CountsOf(s).data();
  meetings_.Free(key);
  if (received <= room_) return;
  ExpertMeetings::Surplus& surplus = meetings_.SurplusOf(key);
  const auto rows = static_cast<std::size_t>(received);
  const std::size_t of_hidden = rows * static_cast<std::size_t>(hidden_);
  const std::size_t of_inner = rows * static_cast<std::size_t>(mixture_.inner);
  surplus.input.resize(of_hidden);
  surplus.weights.resize(rows);
  surplus.gate.resize(of_inner);
  surplus.up.resize(of_inner);
  surplus.product.resize(of_inner);
  surplus.d_output.resize(of_hidden);
}

SharedExperts::Stash SharedMixture::StashOf(const StashView& s, std::int64_t received) const {
  if (received > room_) {
    ExpertMeetings::Surplus& surplus = meetings_.SurplusOf(CountsOf(s).data());
    return {.input = surplus.input.data(),
            .weights = surplus.weights.data(),
            .gate = surplus.gate.data(),
            .up = surplus.up.data(),
            .product = surplus.product.data(),
            .d_output = surplus.d_output.data()};
  }
  return {.input = s[first_stash_ + ArrivalsStash::kInput],
          .weights = s[first_stash_ + ArrivalsStash::kWeights],
          .gate = s[LlamaBlockStash::kGate],
          .up = s[LlamaBlockStash::kUp],
          .product = s[LlamaBlockStash::kProduct],
          .d_output = s[first_stash_ + ArrivalsStash::kDOutput]};
}

SharedMixture::Room SharedMixture::RoomIn(std::byte* scratch, std::int64_t received) const {
  Room room;
  room.scratch = {.rows = FloatsAt(scratch, scratch_[ArrivalsScratch::kRows]),
                  .pairs = FloatsAt(scratch, scratch_[ArrivalsScratch::kPairs]),
                  .results = FloatsAt(scratch, scratch_[ArrivalsScratch::kResults]),
                  .d_weights = FloatsAt(scratch, scratch_[ArrivalsScratch::kDWeights]),
                  .d_product = FloatsAt(scratch, d_product_)};
  if (received <= room_) return room;
  room.results.resize(static_cast<std::size_t>(received * hidden_));
  room.d_weights.resize(static_cast<std::size_t>(received));
  room.d_product.resize(static_cast<std::size_t>(received * mixture_.inner));
  room.scratch.results = room.results.data();
  room.scratch.d_weights = room.d_weights.data();
  room.scratch.d_product = room.d_product.data();
  return room;
}

absl::Status SharedMixture::MeetForShapes(int times) const {
  for (int i = 0; i < times; ++i) RETURN_IF_ERROR(meetings_.Meet([] { return absl::OkStatus(); }));
  return absl::OkStatus();
}

absl::Status SharedMixture::Forward(const RecomputeCall& call, const StashView& s,
                                    const SharedExperts::Routed& routed, bool products) const {
  if (meetings_.shapes_only()) return MeetForShapes(products ? kMeetingsOfForward : 0);
  SharedExperts experts = Over(*call.backend);
  if (!products) {
    const ExpertArrivals arrivals(CountsOf(s), share_.size, share_.index);
    return experts.Activate(arrivals, StashOf(s, arrivals.num_received()));
  }
  ASSIGN_OR_RETURN(const ExpertArrivals arrivals, experts.Announce(routed, CountsOf(s)));
  const std::int64_t received = arrivals.num_received();
  PrepareStash(s, received);
  const Room room = RoomIn(call.scratch, received);
  return experts.Forward(routed, arrivals, s[LlamaBlockStash::kNorm2], StashOf(s, received),
                         room.scratch);
}

absl::Status SharedMixture::Output(const ForwardCall& call, const StashView& s,
                                   const SharedExperts::Routed& routed) const {
  if (meetings_.shapes_only()) return MeetForShapes(kMeetingsOfOutput);
  const ExpertArrivals arrivals(CountsOf(s), share_.size, share_.index);
  const Room room = RoomIn(call.scratch, arrivals.num_received());
  return Over(*call.backend)
      .Output(routed, arrivals, StashOf(s, arrivals.num_received()), room.scratch, call.output.f32);
}

absl::Status SharedMixture::InputGrad(const InputGradCall& call, const StashView& s,
                                      const SharedExperts::Routed& routed,
                                      const SharedExperts::Backward& backward,
                                      absl::FunctionRef<absl::Status()> begin_d_norm) const {
  if (meetings_.shapes_only()) {
    RETURN_IF_ERROR(MeetForShapes(kMeetingsOfInputGrad));
    return begin_d_norm();
  }
  const ExpertArrivals arrivals(CountsOf(s), share_.size, share_.index);
  const Room room = RoomIn(call.scratch, arrivals.num_received());
  return Over(*call.backend)
      .InputGrad(routed, arrivals, backward, StashOf(s, arrivals.num_received()), room.scratch,
                 begin_d_norm);
}

absl::Status SharedMixture::WeightGrad(backend::Backend& backend, const StashView& s,
                                       bool accumulate) const {
  if (meetings_.shapes_only()) return absl::OkStatus();
  const ExpertArrivals arrivals(CountsOf(s), share_.size, share_.index);
  std::vector<SharedExperts::Gradients> gradients;
  for (int source = 0; source < share_.size; ++source) {
    for (int e = 0; e < experts_here_; ++e) {
      const ParameterRef* const first = experts_ + std::int64_t{3} * e;
      const auto of_source = [source](const ParameterRef& ref) {
        return ref.gradient + source * ref.elements();
      };
      gradients.push_back(
          {.gate = of_source(first[0]), .up = of_source(first[1]), .down = of_source(first[2])});
    }
  }
  RETURN_IF_ERROR(Over(backend).WeightGrad(arrivals, StashOf(s, arrivals.num_received()), gradients,
                                           accumulate));
  meetings_.Free(CountsOf(s).data());
  return absl::OkStatus();
}

}  // namespace takt::train
