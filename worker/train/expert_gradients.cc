// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_gradients.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/layout/shard.h"
#include "common/model/shared_mixture.h"

namespace takt::train {
namespace {

using model::kExpertSumFloats;

bool IsOfExpert(const ParameterRef& ref) { return ref.parameter->expert >= 0; }

// Sums over all replicas what is between experts in the layer's bucket.
absl::Status SumOthers(StepId step, const LayerParameters& layer, transport::Collective& replicas) {
  auto ref = layer.refs.begin();
  while (ref != layer.refs.end()) {
    if (IsOfExpert(*ref)) {
      ++ref;
      continue;
    }
    const auto last = std::find_if(ref, layer.refs.end(), IsOfExpert) - 1;
    const std::span<float> run(ref->gradient, last->gradient + last->elements());
    RETURN_IF_ERROR(replicas.AllReduceSum(step, run));
    ref = last + 1;
  }
  return absl::OkStatus();
}

// Sums a slice of the gradients of one parameter of an expert.
class ExpertSum {
 public:
  // slice: elements of the parameter.
  ExpertSum(const ParameterRef& ref, const layout::FloatRun& slice, const GradientGroups& groups)
      : groups_(groups),
        copies_(groups.copies),
        index_(groups.holders == nullptr ? 0 : groups.holders->index()),
        gradients_(ref.gradient + slice.first),
        stride_(ref.elements()),
        count_(static_cast<std::size_t>(slice.count)) {}

  // Adds them up on the way to the last holder. The last contribution is in the first gradient.
  absl::Status Add(StepId step) {
    const int contributions = groups_.replicas->size();
    std::span<float> sum;  // the part of the running sum that this rank made last
    for (int i = 0; i < contributions; ++i) {
      const int holder = HolderOf(i), before = i == 0 ? holder : HolderOf(i - 1);
      if (holder != before) RETURN_IF_ERROR(PassOn(step, sum, before, holder));
      if (holder != index_) continue;
      const std::span<float> mine = GradientOf(i);
      if (holder != before) {
        AddTo(received_, mine);
      } else if (i > 0) {
        AddTo(sum, mine);
      }
      sum = mine;
    }
    return absl::OkStatus();
  }

 private:
  // Contributions are those of the copies of replica 0, of replica 1, and so on.
  int HolderOf(int contribution) const {
    const int replica = contribution / copies_, copy = contribution % copies_;
    return replica / groups_.share.size * copies_ + copy;
  }
  std::span<float> GradientOf(int contribution) const {
    const int source = contribution / copies_ % groups_.share.size;
    return {gradients_ + model::GradientOfSource(groups_.share, source) * stride_, count_};
  }

  static void AddTo(std::span<const float> sum, std::span<float> addend) {
    for (std::size_t i = 0; i < addend.size(); ++i) addend[i] = sum[i] + addend[i];
  }

  absl::Status PassOn(StepId step, std::span<const float> sum, int from, int to) {
    const auto size = static_cast<std::size_t>(groups_.holders->size());
    std::vector<std::span<const std::byte>> sent(size);
    std::vector<std::span<std::byte>> received(size);
    if (index_ == from) sent[static_cast<std::size_t>(to)] = std::as_bytes(sum);
    if (index_ == to) {
      received_.resize(count_);
      received[static_cast<std::size_t>(from)] = std::as_writable_bytes(std::span(received_));
    }
    return groups_.holders->Pass(step, sent, received);
  }

  const GradientGroups& groups_;
  const int copies_, index_;
  float* const gradients_;  // by the first replica
  const std::int64_t stride_;
  const std::size_t count_;
  std::vector<float> received_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSums>> GradientSums::Create(const GradientGroups& groups) {
  const int holders = groups.holders == nullptr ? 1 : groups.holders->size();
  TAKT_CHECK(groups.replicas->size() == holders * groups.share.size &&
             holders % groups.copies == 0 && groups.backend != nullptr);
  backend::Stream* const of_all = groups.replicas->stream();
  backend::Stream* const of_experts =
      groups.holders == nullptr ? groups.backend->stream() : groups.holders->stream();
  ASSIGN_OR_RETURN(backend::StreamLink there, backend::StreamLink::Create(of_all, of_experts));
  ASSIGN_OR_RETURN(backend::StreamLink back, backend::StreamLink::Create(of_experts, of_all));
  return std::unique_ptr<GradientSums>(new GradientSums(groups, std::move(there), std::move(back)));
}

absl::Status GradientSums::Sum(StepId step, const LayerParameters& layer) {
  RETURN_IF_ERROR(SumOthers(step, layer, *groups_.replicas));
  return groups_.backend->memory_is_host() ? SumOfHost(step, layer) : SumOfDevice(step, layer);
}

absl::Status GradientSums::SumOfHost(StepId step, const LayerParameters& layer) {
  for (const ParameterRef& ref : layer.refs) {
    if (!IsOfExpert(ref)) continue;
    for (std::int64_t first = 0; first < ref.elements(); first += kExpertSumFloats) {
      const std::int64_t count = std::min(kExpertSumFloats, ref.elements() - first);
      RETURN_IF_ERROR(ExpertSum(ref, {.first = first, .count = count}, groups_).Add(step));
    }
  }
  for (const ParameterRef& ref : layer.refs) {
    if (!IsOfExpert(ref) || groups_.holders == nullptr) continue;
    const std::span<float> sum(ref.gradient, static_cast<std::size_t>(ref.elements()));
    // The last holder has it.
    RETURN_IF_ERROR(
        groups_.holders->Broadcast(step, groups_.holders->size() - 1, std::as_writable_bytes(sum)));
  }
  return absl::OkStatus();
}

absl::Status GradientSums::SumOfDevice(StepId step, const LayerParameters& layer) {
  RETURN_IF_ERROR(there_.Pass());
  for (const ParameterRef& ref : layer.refs) {
    if (!IsOfExpert(ref)) continue;
    if (groups_.holders == nullptr) {
      RETURN_IF_ERROR(AddTerms(ref));
      continue;
    }
    const auto elements = static_cast<std::size_t>(ref.elements());
    // Contributions are those of the copies of replica 0, of replica 1, and so on.
    RETURN_IF_ERROR(groups_.holders->AllReduceTerms(
        step, std::span(ref.gradient, elements),
        {.count = groups_.share.size, .stride = elements, .in_turns = groups_.copies}));
  }
  return back_.Pass();
}

absl::Status GradientSums::AddTerms(const ParameterRef& ref) {
  const int size = groups_.share.size;
  const auto gradient_of = [&](int source) {
    return ref.gradient + model::GradientOfSource(groups_.share, source) * ref.elements();
  };
  for (int source = 1; source < size; ++source) {
    const int into = source + 1 == size ? source : 0;
    RETURN_IF_ERROR(groups_.backend->Run(backend::Add{.a = gradient_of(0),
                                                      .b = gradient_of(source),
                                                      .output = gradient_of(into),
                                                      .count = ref.elements()}));
  }
  return absl::OkStatus();
}

}  // namespace takt::train
