// SPDX-License-Identifier: Apache-2.0
#include "common/plan/stage_costs.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/bucket_bytes.h"
#include "common/base/direct_ranks.h"
#include "common/layout/slot_layout.h"
#include "common/model/shared_mixture.h"
#include "common/profile/layer_shape.h"
#include "common/profile/parameter_counts.h"
#include "common/profile/profile.h"

namespace takt::plan {
namespace {

using model::Layer;
using model::Recompute;
using profile::Origin;
using profile::Passes;

// A rank copies 10 GB a second within a host's memory, if nothing was measured.
constexpr double kUsualSnapshotSecondsPerByte = 1e-10;

// Returns whether ranks meet inside F, I and W.
bool MeetsInPasses(const CandidateInputs& inputs) {
  return SharersOfLayers(inputs.model) > 1 || inputs.model.context_ranks > 1;
}

// The costs of one job on one number of ranks.
class StageCosts {
 public:
  StageCosts(const CandidateInputs& inputs, int pp_size)
      : inputs_(inputs),
        num_ranks_(inputs.MeshOf(pp_size).size()),
        conditions_(inputs.options.host.ConditionsOf(num_ranks_, inputs.job.parallelism.threads,
                                                     inputs.options.device)) {}

  const profile::Conditions& conditions() const { return conditions_; }

  // The times of one layer, and where they come from.
  profile::Profile::Found LayerTimes(const Layer& layer, Recompute recompute) {
    if (layer.kind == model::LayerKind::kEmulated) return {.seconds = Guess(layer, recompute)};
    const profile::LayerShape shape = profile::ShapeOf(inputs_.model, layer, recompute);
    const auto known = times_.find(shape);
    if (known != times_.end()) return known->second;
    std::optional<profile::Profile::Found> found;
    if (inputs_.options.profile != nullptr) {
      found = inputs_.options.profile->FindLayer({shape, conditions_},
                                                 profile::WorkOf(layer, recompute));
    }
    if (!found) found = {.seconds = Guess(layer, recompute), .origin = Origin::kGuessed};
    return times_.emplace(shape, *found).first->second;
  }

  // The times of S and T for so many words, as F and I. Before S and T were ever measured, they are
  // a share of the head.
  profile::Profile::Found WordTimes(std::int64_t words) {
    if (words == 0) return {};
    const profile::LayerShape shape = profile::ShapeOfWords(inputs_.model, words);
    const auto known = times_.find(shape);
    if (known != times_.end()) return known->second;
    std::optional<profile::Profile::Found> found;
    if (inputs_.options.profile != nullptr) {
      found = inputs_.options.profile->FindLayer({shape, conditions_},
                                                 profile::WorkOfWords(inputs_.model, words));
    }
    if (!found) {
      found = LayerTimes(inputs_.model.layers.back(), Recompute::kNone);
      const double share = static_cast<double>(words) / inputs_.model.config.vocab;
      const Passes head = found->seconds;
      found->seconds = {.forward = share * head.forward,
                        .input_grad = share * (head.input_grad + head.weight_grad),
                        .weight_grad = 0};
      if (found->origin == Origin::kMeasured) found->origin = Origin::kInterpolated;
    }
    return times_.emplace(shape, *found).first->second;
  }

  // spread: without the layers with words.
  Passes StageTimes(const mesh::Stage& stage, bool spread) {
    Passes sum;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      if (spread && profile::HasWords(inputs_.model.layers[i])) continue;
      const Layer& layer = inputs_.model.layers[i];
      const Passes passes = LayerTimes(layer, stage.recompute).seconds;
      // A step waits for the rank whose experts have the most rows.
      const double slowest =
          model::SlowestShare(inputs_.model, layer, inputs_.options.expert_imbalance);
      sum.forward += slowest * passes.forward;
      sum.input_grad += slowest * passes.input_grad;
      sum.weight_grad += slowest * passes.weight_grad;
    }
    return sum;
  }

  cost::Costs Of(const mesh::Partition& partition, int pp_size,
                 const mesh::VocabularyEnds& vocabulary_ends) {
    const bool spread = !vocabulary_ends.empty();
    const profile::RankSample rank = RankTimes();
    std::vector<double> optimizer =
        profile::UpdatedParameters(inputs_.model, partition, pp_size, vocabulary_ends);
    // Replicas that share update their shards alone.
    const double update_seconds =
        rank.update_seconds * (inputs_.shares ? 1.0 / inputs_.num_replicas() : 1);
    for (double& seconds : optimizer) seconds *= update_seconds;
    cost::Costs costs{.forward = {},
                      .input_grad = {},
                      .weight_grad = {},
                      .backward = {},
                      .link = Link(partition),
                      .reduction = {},
                      .terms = inputs_.leaves(),
                      // GPUs are taken to sum by NCCL, which has another way.
                      .chained_sums = inputs_.options.device != config::DeviceKind::kCuda &&
                                      inputs_.num_replicas() > kMostDirectRanks,
                      .tied_reduction = spread ? 0 : TiedReduction(pp_size),
                      .optimizer = std::move(optimizer),
                      .tensor = {TensorGroupCost(inputs_, TensorGroupsFitHosts(inputs_))},
                      .context = {ContextGroupCost(inputs_)},
                      .halves_run_beside = inputs_.options.device != config::DeviceKind::kCuda};
    for (const mesh::Stage& stage : partition) {
      const Passes passes = StageTimes(stage, spread);
      costs.forward.push_back(passes.forward + rank.dispatch_seconds);
      costs.input_grad.push_back(passes.input_grad + rank.dispatch_seconds);
      costs.weight_grad.push_back(passes.weight_grad + rank.dispatch_seconds);
      costs.backward.push_back(passes.input_grad + passes.weight_grad + rank.dispatch_seconds);
      const int replicas = inputs_.num_replicas();
      costs.reduction.push_back(replicas > 1 ? SumSeconds(replicas, GradientElements(stage, spread))
                                             : 0);
    }
    if (spread) AddWords(vocabulary_ends, rank.dispatch_seconds, update_seconds, costs);
    AddPairs(costs);
    return costs;
  }

 private:
  // Adds what pairs take whose halves run side by side, if any were measured.
  void AddPairs(cost::Costs& costs) const {
    if (!costs.halves_run_beside || !MeetsInPasses(inputs_)) return;
    if (inputs_.options.profile == nullptr || emulated()) return;
    costs.pair_ratio = inputs_.options.profile->FindPair(conditions_).value_or(1);
  }

  // Adds what S, T and the updates of rows take on each rank, and the sums of the rows of all
  // ranks.
  void AddWords(const mesh::VocabularyEnds& ends, double dispatch_seconds, double update_seconds,
                cost::Costs& costs) {
    for (auto* const by_rank : {&costs.vocabulary_forward, &costs.vocabulary_backward,
                                &costs.embedding_update, &costs.head_update})
      by_rank->clear();
    double rows = 0;
    for (PpRank pp_rank(0); pp_rank.value() < std::ssize(ends); ++pp_rank) {
      const std::int64_t words = mesh::WordsOf(ends, pp_rank, inputs_.model.config.vocab).words;
      const Passes passes = WordTimes(words).seconds;
      costs.vocabulary_forward.push_back(passes.forward + dispatch_seconds);
      costs.vocabulary_backward.push_back(passes.input_grad + dispatch_seconds);
      const auto [embedding, head] = profile::UpdatedRows(inputs_.model, ends, pp_rank);
      costs.embedding_update.push_back(update_seconds * embedding);
      costs.head_update.push_back(update_seconds * head);
      rows += profile::RowElements(inputs_.model, ends, pp_rank);
    }
    const int replicas = inputs_.num_replicas();
    if (replicas > 1) costs.reduction.push_back(SumSeconds(replicas, rows));
  }

  Passes Guess(const Layer& layer, Recompute recompute) const {
    const double rate = inputs_.options.matmul_flops_per_second;
    const model::LayerCost& cost = layer.cost;
    return {.forward = cost.forward_seconds + cost.forward_flops / rate,
            .input_grad = cost.input_grad_seconds + cost.InputGradFlops(recompute) / rate,
            .weight_grad = cost.weight_grad_seconds + cost.weight_grad_flops / rate};
  }

  bool emulated() const { return inputs_.job.model.family == model::Family::kEmulated; }

  profile::RankSample RankTimes() const {
    if (inputs_.options.profile == nullptr || emulated()) return {};
    return inputs_.options.profile->FindRank(conditions_).value_or(profile::RankSample());
  }

  bool on_one_host() const { return num_ranks_ <= inputs_.options.host.room(); }

  cost::LinkCost Link(const mesh::Partition& partition) const {
    const PlanOptions& options = inputs_.options;
    cost::LinkCost link{.latency = options.link_latency_seconds,
                        .seconds_per_byte = options.link_seconds_per_byte};
    if (options.profile == nullptr || !options.use_measured_links) return link;
    std::int64_t bytes = 1;  // the stages of a model pass on as much as one another
    for (const mesh::Stage& stage : partition) {
      const Layer& last = inputs_.model.layers[stage.last_layer.value() - 1];
      bytes = std::max(bytes, last.cost.output_bytes);
    }
    const std::optional<double> seconds = options.profile->FindMessage(on_one_host(), bytes);
    if (!seconds) return link;
    link.latency = std::min(*seconds, link.latency);
    link.seconds_per_byte = (*seconds - link.latency) / static_cast<double>(bytes);
    return link;
  }

  // A sum that was not measured takes what its messages do. Each of n ranks sends, and gets, n-1 of
  // n parts of the values, and then as many of the sums.
  double SumSeconds(int num_ranks, double elements) const {
    const PlanOptions& options = inputs_.options;
    std::optional<double> seconds_per_byte;
    if (options.profile != nullptr) {
      seconds_per_byte =
          options.profile->FindSum({.same_host = on_one_host(), .num_ranks = num_ranks});
    }
    const double usual = 2.0 * (num_ranks - 1) / num_ranks * options.link_seconds_per_byte;
    return seconds_per_byte.value_or(usual) * elements * sizeof(float);
  }

  // Both ends of the pipeline add their gradients of the embedding.
  double TiedReduction(int pp_size) const {
    const std::vector<std::string>& tied = inputs_.model.layers.back().tied_parameters;
    if (pp_size == 1 || tied.empty()) return 0;
    double elements = 0;
    for (const std::string& name : tied)
      elements += static_cast<double>(inputs_.model.Find(name)->elements());
    return SumSeconds(2, elements);
  }

  double GradientElements(const mesh::Stage& stage, bool spread) const {
    double elements = 0;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i)
      elements += profile::GradientElements(inputs_.model, inputs_.model.layers[i], spread);
    return elements;
  }

  const CandidateInputs& inputs_;
  const int num_ranks_;
  const profile::Conditions conditions_;
  std::map<profile::LayerShape, profile::Profile::Found> times_;
};

int PpSizeOf(const mesh::Partition& partition) {
  int pp_size = 1;
  for (const mesh::Stage& stage : partition) pp_size = std::max(pp_size, stage.pp_rank.value() + 1);
  return pp_size;
}

// Returns the most bytes that a rank passes on in one meeting inside a pass, at least 1.
std::int64_t LargestMeeting(const model::Model& model, model::PartGroup group) {
  std::int64_t most = 1;
  for (const Layer& layer : model.layers) {
    for (const auto* parts : {&layer.parts.forward, &layer.parts.input_grad}) {
      for (const model::Part& part : *parts) {
        if (part.group == group) most = std::max(most, part.bytes);
      }
    }
  }
  return most;
}

// Returns what the meetings of a group cost: as measured, else as so many messages.
cost::GroupCost GroupCostOf(const CandidateInputs& inputs, model::PartGroup which, int size,
                            bool same_host) {
  const int others = size - 1;
  const PlanOptions& options = inputs.options;
  cost::GroupCost group{.size = size,
                        .link = {.latency = options.link_latency_seconds,
                                 .seconds_per_byte = options.link_seconds_per_byte}};
  if (others == 0 || options.profile == nullptr || !options.use_measured_links) return group;
  const std::int64_t bytes = LargestMeeting(inputs.model, which);
  // Meetings are timed on CPUs alone.
  std::optional<double> seconds;
  if (options.device != config::DeviceKind::kCuda)
    seconds = options.profile->FindMeeting(same_host, group.size, bytes);
  if (!seconds) {
    seconds = options.profile->FindMessage(same_host, bytes / others);
    if (!seconds) return group;
    *seconds *= others;
  }
  group.link.latency = std::min(*seconds / others, group.link.latency);
  group.link.seconds_per_byte =
      (*seconds - group.link.latency * others) / static_cast<double>(bytes);
  return group;
}

void AddOnce(std::string text, std::vector<std::string>& texts) {
  if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
}

}  // namespace

std::vector<double> LayerSeconds(const CandidateInputs& inputs, int pp_size) {
  StageCosts costs(inputs, pp_size);
  const Recompute most = *std::ranges::max_element(inputs.recompute);
  const bool spread = inputs.spread && pp_size > 1;
  std::vector<double> seconds;
  for (const Layer& layer : inputs.model.layers) {
    const bool is_empty = spread && profile::HasWords(layer);
    seconds.push_back(
        is_empty ? 0
                 : model::SlowestShare(inputs.model, layer, inputs.options.expert_imbalance) *
                       costs.LayerTimes(layer, most).seconds.sum());
  }
  return seconds;
}

cost::Costs CostsOf(const CandidateInputs& inputs, const mesh::Partition& partition,
                    const mesh::VocabularyEnds& vocabulary_ends) {
  const int pp_size = PpSizeOf(partition);
  return StageCosts(inputs, pp_size).Of(partition, pp_size, vocabulary_ends);
}

int SharersOfLayers(const model::Model& model) {
  return model.experts.shares() ? model.experts.size : model.tensor.size;
}

bool TensorGroupsFitHosts(const CandidateInputs& inputs) {
  const Host& host = inputs.options.host;
  return host.machine.empty() || SharersOfLayers(inputs.model) <= host.room();
}

cost::GroupCost TensorGroupCost(const CandidateInputs& inputs, bool same_host) {
  const bool experts = inputs.model.experts.shares();
  const model::PartGroup group = experts ? model::PartGroup::kExpert : model::PartGroup::kTensor;
  return GroupCostOf(inputs, group, SharersOfLayers(inputs.model), same_host);
}

cost::GroupCost ContextGroupCost(const CandidateInputs& inputs) {
  const Host& host = inputs.options.host;
  const int size = inputs.model.context_ranks;
  const bool same_host = host.machine.empty() || size * inputs.model.tensor.size <= host.room();
  return GroupCostOf(inputs, model::PartGroup::kContext, size, same_host);
}

cost::Costs WithMeetings(const CandidateInputs& inputs, const mesh::Partition& partition,
                         cost::Costs costs) {
  if (!MeetsInPasses(inputs)) return costs;
  // Halves that run in turn hide no meetings.
  const std::size_t hidden = costs.halves_run_beside ? partition.size() : 1;
  costs.forward_meetings.assign(hidden, 0);
  costs.backward_meetings.assign(hidden, 0);
  for (const mesh::Stage& stage : partition) {
    const cost::GroupCost& tensor = costs.Tensor(stage.pp_rank);
    const cost::GroupCost& context = costs.Context(stage.pp_rank);
    const auto seconds = [&](const std::vector<model::Part>& parts) {
      double sum = 0;
      for (const model::Part& part : parts) {
        const bool of_context = part.group == model::PartGroup::kContext;
        sum += part.meets() ? cost::MeetingCost(of_context ? context : tensor, part.bytes) : 0;
      }
      return sum;
    };
    const auto place = static_cast<std::size_t>(stage.id.value());
    for (const model::LayerParts& layer : layout::ShapeOf(inputs.model, stage).layers) {
      const double forward = seconds(layer.forward);
      const double input_grad = seconds(layer.input_grad);
      const double weight_grad = seconds(layer.weight_grad);
      costs.forward[place] += forward;
      costs.input_grad[place] += input_grad;
      costs.weight_grad[place] += weight_grad;
      costs.backward[place] += input_grad + weight_grad;
      if (!costs.halves_run_beside) continue;
      costs.forward_meetings[place] += forward;
      costs.backward_meetings[place] += input_grad + weight_grad;
    }
  }
  return costs;
}

std::int64_t BucketBytes(const CandidateInputs& inputs, int pp_size) {
  constexpr int kLeastRatio = 8;     // of message sizes, so that latency and rate can be told apart
  constexpr double kTransfers = 19;  // the time of a bucket's bytes, in latencies
  const PlanOptions& options = inputs.options;
  if (inputs.num_replicas() == 1 || options.profile == nullptr || !options.use_measured_links ||
      options.oldest_protocol < kAllWaysProtocolVersion) {
    return 0;
  }
  const bool same_host = inputs.MeshOf(pp_size).size() <= options.host.room();
  const profile::MessageSample *smallest = nullptr, *largest = nullptr;
  for (const auto& [key, sample] : options.profile->messages()) {  // by size
    if (key.same_host != same_host) continue;
    if (smallest == nullptr) smallest = &sample;
    largest = &sample;
  }
  if (smallest == nullptr || largest->bytes < kLeastRatio * smallest->bytes) return 0;
  const double seconds_per_byte = (largest->seconds - smallest->seconds) /
                                  static_cast<double>(largest->bytes - smallest->bytes);
  const double latency =
      smallest->seconds - seconds_per_byte * static_cast<double>(smallest->bytes);
  if (seconds_per_byte <= 0 || latency <= 0) return 0;
  const double wanted =
      std::clamp(kTransfers * latency / seconds_per_byte, static_cast<double>(kLeastBucketBytes),
                 static_cast<double>(kMostBucketBytes));
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
}

double SnapshotSeconds(const CandidateInputs& inputs, int pp_size, std::int64_t bytes) {
  std::optional<double> seconds_per_byte;
  if (inputs.options.profile != nullptr) {
    const StageCosts costs(inputs, pp_size);
    seconds_per_byte = inputs.options.profile->FindSnapshot(costs.conditions());
  }
  return seconds_per_byte.value_or(kUsualSnapshotSecondsPerByte) * static_cast<double>(bytes);
}

void AddOrigins(const CandidateInputs& inputs, const mesh::Partition& partition,
                const mesh::VocabularyEnds& vocabulary_ends, Origins& origins) {
  StageCosts costs(inputs, PpSizeOf(partition));
  std::vector<std::string>* const lists[] = {&origins.measured, &origins.interpolated,
                                             &origins.guessed};
  const auto add = [&](const profile::LayerShape& shape, Origin origin) {
    std::string text = ToString(shape);
    if (!costs.conditions().machine.empty()) text += " on " + ToString(costs.conditions());
    AddOnce(std::move(text), *lists[static_cast<int>(origin)]);
  };
  const bool spread = !vocabulary_ends.empty();
  for (const mesh::Stage& stage : partition) {
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      const Layer& layer = inputs.model.layers[i];
      if (layer.kind == model::LayerKind::kEmulated) continue;
      if (spread && profile::HasWords(layer)) continue;
      add(profile::ShapeOf(inputs.model, layer, stage.recompute),
          costs.LayerTimes(layer, stage.recompute).origin);
    }
  }
  for (PpRank rank(0); rank.value() < std::ssize(vocabulary_ends); ++rank) {
    const std::int64_t words =
        mesh::WordsOf(vocabulary_ends, rank, inputs.model.config.vocab).words;
    if (words == 0) continue;
    add(profile::ShapeOfWords(inputs.model, words), costs.WordTimes(words).origin);
  }
}

}  // namespace takt::plan
