// SPDX-License-Identifier: Apache-2.0
#include "worker/session/split_state.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "common/model/vocabulary.h"

namespace takt::session {
namespace {

using worker_checkpoint::LayerState;
using worker_checkpoint::ParameterTarget;

// Precondition: the model was built.
model::Model WholeOf(const model::Model& split) {
  model::Model whole = model::BuildModel(split.config, split.microbatch, split.precisions).value();
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    for (std::size_t p = 0; p < whole.layers[i].parameters.size(); ++p)
      whole.layers[i].parameters[p].moments = split.layers[i].parameters[p].moments;
  }
  return whole;
}

}  // namespace

SplitState::SplitState(const control::Assignment& assignment, const model::Model& model,
                       const train::ParameterStore& store, transport::Collective* group)
    : assignment_(assignment), model_(model), whole_(WholeOf(model)), store_(store), group_(group) {
  const mesh::Mesh& mesh = assignment.mesh;
  for (const mesh::Stage& stage : assignment.partition) {
    if (stage.pp_rank != mesh.PpRankOf(assignment.rank)) continue;
    for (LayerId layer = stage.first_layer; layer < stage.last_layer; ++layer) {
      if (layout::WriterOf(layer, mesh.num_replicas()) == mesh.ReplicaOf(assignment.rank))
        layers_.push_back(layer);
    }
  }
}

int SplitState::WriterOf(LayerId layer) const {
  const int num_replicas = assignment_.mesh.num_replicas();
  return layout::WriterAmongSplit(layer, num_replicas, model_.tensor.size).value();
}

std::vector<LayerState> SplitState::WrittenState() const {
  std::vector<LayerState> written;
  for (const LayerId layer : layers_) {
    if (WriterOf(layer) != index()) continue;
    LayerState& state = written.emplace_back(LayerState{.layer = layer});
    for (const model::Parameter& parameter : whole_.layers[layer.value()].parameters)
      state.parameters.push_back({.parameter = &parameter});
  }
  return written;
}

const train::ParameterRef* SplitState::RefOf(LayerId layer,
                                             const model::Parameter& parameter) const {
  const std::vector<train::ParameterRef>& refs = store_.Layer(layer).refs;
  const auto ref = std::ranges::find(refs, &parameter, &train::ParameterRef::parameter);
  return ref == refs.end() ? nullptr : &*ref;
}

ParameterTarget SplitState::JoinedOf(LayerId layer, const model::Parameter& parameter) {
  const train::ParameterRef* const ref = RefOf(layer, parameter);
  TAKT_CHECK(ref != nullptr);
  const auto count = static_cast<std::size_t>(ref->elements());
  Joined& joined = joined_[&parameter];
  joined.weight.resize(ref->freed ? count : 0);
  joined.m.resize(parameter.moments >= 1 ? count : 0);
  joined.v.resize(parameter.moments >= 2 ? count : 0);
  return {.parameter = &parameter, .weight = joined.weight, .m = joined.m, .v = joined.v};
}

absl::Status SplitState::ForEachRunOf(
    const model::Parameter& parameter, int rank,
    absl::FunctionRef<absl::Status(const model::ElementRun&)> visit) const {
  if (!parameter.by_word) {
    const model::Parameter part = model::PartOfRank(parameter, model_.tensor, rank);
    return part.split.holder > 0 ? absl::OkStatus() : model::ForEachRun(part, visit);
  }
  const std::int64_t vocab = parameter.shape[0], columns = parameter.shape[1];
  const auto [first, last] = model::BlocksOf(model::ShareOf(model_.tensor, rank), vocab);
  const std::int64_t begin = std::min(vocab, first * model::kVocabularyBlock);
  const std::int64_t end = std::min(vocab, last * model::kVocabularyBlock);
  return visit({.whole = begin * columns, .count = (end - begin) * columns});
}

absl::Status SplitState::Pass(StepId step, const model::Parameter& parameter, int writer,
                              std::span<const float> mine, std::span<float> whole) const {
  const auto count_of = [&](int rank) {
    std::int64_t count = 0;
    const auto add = [&count](const model::ElementRun& run) {
      count += run.count;
      return absl::OkStatus();
    };
    TAKT_CHECK(ForEachRunOf(parameter, rank, add).ok());
    return static_cast<std::size_t>(count);
  };
  const auto size = static_cast<std::size_t>(model_.tensor.size);
  std::vector<std::span<const float>> values(size);
  std::vector<std::span<std::byte>> parts;
  std::vector<float> received(index() == writer ? whole.size() : 0);
  std::span<float> left = received;
  for (int rank = 0; index() == writer && rank < model_.tensor.size; ++rank) {
    const std::span<float> part = left.first(count_of(rank));
    left = left.subspan(part.size());
    parts.push_back(std::as_writable_bytes(part));
    values[static_cast<std::size_t>(rank)] = rank == index() ? mine : std::span<const float>(part);
  }
  if (group_ != nullptr) {
    RETURN_IF_ERROR(
        group_->SendTo(step, writer, std::as_bytes(mine.first(count_of(index()))), parts));
  }
  for (std::size_t rank = 0; index() == writer && rank < size; ++rank) {
    const auto place = [&](const model::ElementRun& run) {
      std::ranges::copy(values[rank].subspan(static_cast<std::size_t>(run.here),
                                             static_cast<std::size_t>(run.count)),
                        whole.begin() + run.whole);
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForEachRunOf(parameter, static_cast<int>(rank), place));
  }
  return absl::OkStatus();
}

absl::Status SplitState::PassStored(StepId step, const model::Parameter& parameter, int writer,
                                    std::span<const float> mine, std::span<float> whole) const {
  backend::Backend& backend = store_.backend();
  if (backend.memory_is_host()) return Pass(step, parameter, writer, mine, whole);
  std::vector<float> on_host(mine.size());
  RETURN_IF_ERROR(backend.CopyToHost(reinterpret_cast<const std::byte*>(mine.data()),
                                     std::as_writable_bytes(std::span(on_host))));
  RETURN_IF_ERROR(backend.Synchronize());
  return Pass(step, parameter, writer, on_host, whole);
}

absl::Status SplitState::Join(StepId step, const worker_checkpoint::Snapshot& snapshot) const {
  for (const LayerId layer : layers_) {
    const int writer = WriterOf(layer);
    const std::vector<model::Parameter>& parameters = model_.layers[layer.value()].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const model::Parameter& parameter = parameters[i];
      ParameterTarget whole;
      if (writer == index()) whole = snapshot.PlaceOf(whole_.layers[layer.value()].parameters[i]);
      const train::ParameterRef* const ref = RefOf(layer, parameter);
      std::span<const float> weight, m, v;
      if (ref != nullptr) {
        weight = {ref->weight, ref->freed ? 0 : static_cast<std::size_t>(ref->elements())};
        m = ref->moment(ref->m);
        v = ref->moment(ref->v);
      }
      const auto found = joined_.find(&parameter);
      const bool shares = found != joined_.end();
      const Joined none{};
      const Joined& joined = shares ? found->second : none;
      const auto pass = [&](bool is_joined, std::span<const float> stored,
                            std::span<const float> of_shards, std::span<float> to) {
        return is_joined ? Pass(step, parameter, writer, of_shards, to)
                         : PassStored(step, parameter, writer, stored, to);
      };
      const bool frees = ref != nullptr && ref->freed;
      RETURN_IF_ERROR(pass(frees, weight, joined.weight, whole.weight));
      if (parameter.moments >= 1) RETURN_IF_ERROR(pass(shares, m, joined.m, whole.m));
      if (parameter.moments >= 2) RETURN_IF_ERROR(pass(shares, v, joined.v, whole.v));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::session
