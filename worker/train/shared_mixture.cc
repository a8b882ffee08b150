// SPDX-License-Identifier: Apache-2.0
#include "worker/train/shared_mixture.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

std::int32_t* SharedMixture::OffsetsOf(const StashView& s) const {
  return reinterpret_cast<std::int32_t*>(s[first_stash_ + ArrivalsStash::kOffsets]);
}

ExpertMeetings::Arrived& SharedMixture::ArrivedOf(const StashView& s) const {
  return meetings_.ArrivedAt(OffsetsOf(s));
}

absl::StatusOr<backend::Buffer> SharedMixture::Allocate(backend::Backend& backend,
                                                        std::int64_t rows, std::int64_t columns,
                                                        MemoryKind kind) const {
  const auto bytes = static_cast<std::size_t>(rows * columns) * sizeof(float);
  absl::StatusOr<backend::Buffer> buffer = backend.AllocateInOrder(bytes, kind);
  if (buffer.ok()) return buffer;
  return absl::Status(
      buffer.status().code(),
      absl::StrCat("parallelism.expert is ", share_.size, ": ", rows,
                   " rows came to the experts of this rank, which has room for ", room_,
                   ", and there is no memory for more (", buffer.status().message(),
                   "); use a smaller microbatch, or balance experts by "
                   "model.experts.auxiliary_loss"));
}

absl::Status SharedMixture::PrepareStash(backend::Backend& backend, const StashView& s) const {
  ExpertMeetings::Arrived& arrived = ArrivedOf(s);
  arrived.surplus.reset();
  const std::int64_t received = arrived.rows->num_received();
  if (received <= room_) return absl::OkStatus();
  ExpertMeetings::Surplus& surplus = arrived.surplus.emplace();
  const std::pair<backend::Buffer*, std::int64_t> buffers[] = {
      {&surplus.input, hidden_},          {&surplus.weights, 1},
      {&surplus.gate, mixture_.inner},    {&surplus.up, mixture_.inner},
      {&surplus.product, mixture_.inner}, {&surplus.d_output, hidden_}};
  for (const auto& [buffer, columns] : buffers) {
    ASSIGN_OR_RETURN(*buffer, Allocate(backend, received, columns, MemoryKind::kStash));
  }
  return absl::OkStatus();
}

SharedExperts::Stash SharedMixture::StashOf(const StashView& s) const {
  const std::optional<ExpertMeetings::Surplus>& surplus = ArrivedOf(s).surplus;
  if (surplus.has_value()) {
    return {.input = surplus->input.floats(),
            .weights = surplus->weights.floats(),
            .gate = surplus->gate.floats(),
            .up = surplus->up.floats(),
            .product = surplus->product.floats(),
            .d_output = surplus->d_output.floats()};
  }
  return {.input = s[first_stash_ + ArrivalsStash::kInput],
          .weights = s[first_stash_ + ArrivalsStash::kWeights],
          .gate = s[LlamaBlockStash::kGate],
          .up = s[LlamaBlockStash::kUp],
          .product = s[LlamaBlockStash::kProduct],
          .d_output = s[first_stash_ + ArrivalsStash::kDOutput]};
}

absl::Status SharedMixture::WithRoom(
    backend::Backend& backend, std::byte* scratch, std::int64_t received,
    absl::FunctionRef<absl::Status(const SharedExperts::Scratch&)> use) const {
  SharedExperts::Scratch room = {
      .rows = FloatsAt(scratch, scratch_[ArrivalsScratch::kRows]),
      .pairs = FloatsAt(scratch, scratch_[ArrivalsScratch::kPairs]),
      .results = FloatsAt(scratch, scratch_[ArrivalsScratch::kResults]),
      .d_weights = FloatsAt(scratch, scratch_[ArrivalsScratch::kDWeights]),
      .d_product = FloatsAt(scratch, d_product_)};
  if (received <= room_) return use(room);
  const auto allocate = [&](std::int64_t columns) {
    return Allocate(backend, received, columns, MemoryKind::kScratch);
  };
  ASSIGN_OR_RETURN(const backend::Buffer results, allocate(hidden_));
  ASSIGN_OR_RETURN(const backend::Buffer d_weights, allocate(1));
  ASSIGN_OR_RETURN(const backend::Buffer d_product, allocate(mixture_.inner));
  room.results = results.floats();
  room.d_weights = d_weights.floats();
  room.d_product = d_product.floats();
  return use(room);
}

absl::Status SharedMixture::MeetForShapes(int times) const {
  for (int i = 0; i < times; ++i) RETURN_IF_ERROR(meetings_.Meet([] { return absl::OkStatus(); }));
  return absl::OkStatus();
}

absl::Status SharedMixture::Forward(const RecomputeCall& call, const StashView& s,
                                    const SharedExperts::Routed& routed, bool products) const {
  if (meetings_.shapes_only()) return MeetForShapes(products ? kMeetingsOfForward : 0);
  SharedExperts experts = Over(*call.backend);
  if (!products) return experts.Activate(ArrivalsOf(s), StashOf(s));
  ASSIGN_OR_RETURN(const ExpertArrivals* const arrivals, experts.Announce(routed, OffsetsOf(s)));
  RETURN_IF_ERROR(PrepareStash(*call.backend, s));
  return WithRoom(*call.backend, call.scratch, arrivals->num_received(),
                  [&](const SharedExperts::Scratch& scratch) {
                    return experts.Forward(routed, *arrivals, s[LlamaBlockStash::kNorm2],
                                           StashOf(s), scratch);
                  });
}

absl::Status SharedMixture::Output(const ForwardCall& call, const StashView& s,
                                   const SharedExperts::Routed& routed) const {
  if (meetings_.shapes_only()) return MeetForShapes(kMeetingsOfOutput);
  const ExpertArrivals& arrivals = ArrivalsOf(s);
  return WithRoom(
      *call.backend, call.scratch, arrivals.num_received(),
      [&](const SharedExperts::Scratch& scratch) {
        return Over(*call.backend).Output(routed, arrivals, StashOf(s), scratch, call.output.f32);
      });
}

absl::Status SharedMixture::InputGrad(const InputGradCall& call, const StashView& s,
                                      const SharedExperts::Routed& routed,
                                      const SharedExperts::Backward& backward,
                                      absl::FunctionRef<absl::Status()> begin_d_norm) const {
  if (meetings_.shapes_only()) {
    RETURN_IF_ERROR(MeetForShapes(kMeetingsOfInputGrad));
    return begin_d_norm();
  }
  const ExpertArrivals& arrivals = ArrivalsOf(s);
  return WithRoom(*call.backend, call.scratch, arrivals.num_received(),
                  [&](const SharedExperts::Scratch& scratch) {
                    return Over(*call.backend)
                        .InputGrad(routed, arrivals, backward, StashOf(s), scratch, begin_d_norm);
                  });
}

absl::Status SharedMixture::WeightGrad(backend::Backend& backend, const StashView& s,
                                       bool accumulate) const {
  if (meetings_.shapes_only()) return absl::OkStatus();
  std::vector<SharedExperts::Gradients> gradients;
  for (int source = 0; source < share_.size; ++source) {
    for (int e = 0; e < experts_here_; ++e) {
      const ParameterRef* const first = experts_ + std::int64_t{3} * e;
      const auto of_source = [&](const ParameterRef& ref) {
        return ref.gradient + model::GradientOfSource(share_, source) * ref.elements();
      };
      gradients.push_back(
          {.gate = of_source(first[0]), .up = of_source(first[1]), .down = of_source(first[2])});
    }
  }
  RETURN_IF_ERROR(Over(backend).WeightGrad(ArrivalsOf(s), StashOf(s), gradients, accumulate));
  ArrivedOf(s).surplus.reset();
  return absl::OkStatus();
}

}  // namespace takt::train
