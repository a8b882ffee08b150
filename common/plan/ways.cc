// SPDX-License-Identifier: Apache-2.0
// Letters: M microbatches of a step on each replica, P ranks of the pipeline.
#include "common/plan/ways.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/spread.h"
#include "common/plan/stage_costs.h"
#include "common/plan/worker_programs.h"
#include "common/profile/layer_shape.h"
#include "common/schedule/generate.h"

namespace takt::plan {
namespace {

// `microbatch: auto` chooses among the smallest divisors of the global batch, so many of them.
// Larger microbatches would hardly be faster.
constexpr std::size_t kMicrobatchSizes = 24;

// The layers are cut into stages for so many ways at most.
constexpr std::size_t kMostWays = 256;

// This bounds a plan's time and size. Its programs list an instruction for each microbatch and
// stage, and in it each layer of the stage. A client waits while the plan is made, which takes a
// few seconds at most, and a worker's program is sent in one message.
constexpr std::int64_t kMaxLayerPasses = std::int64_t{1} << 18;

// Returns whether each microbatch is an update of its own under this schedule.
bool UpdatesEachBackward(std::string_view schedule) {
  return std::ranges::any_of(schedule::Families(), [&](const schedule::Family& family) {
    return family.name == schedule && family.updates == schedule::Updates::kEachBackward;
  });
}

// Returns all divisors, ascending.
std::vector<int> DivisorsOf(int number) {
  std::vector<int> divisors;
  for (int i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::ranges::sort(divisors);
  return divisors;
}

int MicrobatchesOf(const config::JobSpec& job, const Division& division) {
  return job.global_batch / (division.data * division.microbatch);
}

// Returns the numbers of replicas that a plan may choose, the least at any rate. Precondition: the
// job leaves them open.
std::vector<int> ReplicasOf(const config::JobSpec& job, int max_workers) {
  const int least = job.LeastData();
  const int room =
      std::max(least, max_workers / (job.LeastPipeline() * job.parallelism.RanksPerReplica()));
  const int most = job.elastic.data.has_value() ? std::min(room, job.elastic.data->max) : room;
  std::vector<int> replicas = DivisorsOf(job.global_batch);
  const int leaves = job.parallelism.data_leaves;
  std::erase_if(replicas, [&](int size) {
    return size < least || size > most || (leaves > 0 && leaves % size != 0);
  });
  return replicas;
}

// Returns whether another field leaves no choice but one rank for each layer. Otherwise the fastest
// ways could all be such as CheckSchedule refuses.
bool LayersStayWhole(const config::JobSpec& job, const PlanOptions& options) {
  if (options.oldest_protocol < kAllWaysProtocolVersion) return true;
  if (job.parallelism.vocabulary == config::Vocabulary::kSpread) return true;
  if (job.parallelism.context > 1) return true;
  if (job.muon.has_value() || job.fp8 != model::Fp8Recipe::kNone) return true;
  if (model::HasExperts(job.model.family)) return true;
  return std::ranges::any_of(schedule::Families(), [&](const schedule::Family& family) {
    return family.name == job.parallelism.schedule &&
           (family.updates != schedule::Updates::kFlush ||
            family.placement == schedule::Placement::kBidirectional);
  });
}

// Returns the numbers of ranks that may share a layer: what the job names, or with `auto` the
// powers of two for which a host has room.
std::vector<int> TensorSizesOf(const config::JobSpec& job, const PlanOptions& options) {
  if (!job.parallelism.tensor_auto) return {job.parallelism.tensor};
  if (LayersStayWhole(job, options)) return {1};
  const Host& host = options.host;
  const int most =
      host.machine.empty() ? options.max_workers : std::min(options.max_workers, host.room());
  std::vector<int> sizes = {1};
  while (sizes.back() * 2 <= most) sizes.push_back(sizes.back() * 2);
  return sizes;
}

// Returns the divisions that a plan may choose. Precondition: CheckBatch.
absl::StatusOr<std::vector<Division>> DivisionsOf(const config::JobSpec& job,
                                                  const PlanOptions& options,
                                                  std::int64_t num_layers) {
  const config::Parallelism& asked = job.parallelism;
  std::vector<int> data = {asked.data.value_or(1)}, microbatches = {job.microbatch};
  const bool has_range = job.elastic.data.has_value() && !asked.data.has_value();
  const bool is_open = asked.data_auto || has_range;
  if (is_open && !UpdatesEachBackward(asked.schedule)) data = ReplicasOf(job, options.max_workers);
  if (job.microbatch_auto) {
    microbatches = DivisorsOf(job.global_batch);
    microbatches.resize(std::min(microbatches.size(), kMicrobatchSizes));
  }
  const std::vector<int> tensor = TensorSizesOf(job, options);
  std::vector<Division> divisions;
  int fewest = job.global_batch;  // microbatches
  for (const int replicas : data) {
    for (const int microbatch : microbatches) {
      const int parts = asked.data_leaves > 0 ? asked.data_leaves : replicas;
      if (job.global_batch / parts % microbatch != 0) continue;
      const Division division{.data = replicas, .microbatch = microbatch};
      fewest = std::min(fewest, MicrobatchesOf(job, division));
      if (num_layers * MicrobatchesOf(job, division) > kMaxLayerPasses) continue;
      for (const int size : tensor) {
        const int ranks = replicas * job.LeastPipeline() * size;
        if (asked.tensor_auto && size > 1 && ranks > options.max_workers) continue;
        divisions.push_back({.data = replicas, .microbatch = microbatch, .tensor = size});
      }
    }
  }
  if (!divisions.empty()) return divisions;
  return InvalidField(
      {.field = "batch.microbatch",
       .value = job.microbatch_auto ? "auto" : absl::StrCat(job.microbatch),
       .rule = absl::StrCat("makes ", fewest, " microbatches a step; with ", num_layers,
                            " layers at most ", kMaxLayerPasses / num_layers, " are possible"),
       .fix = "use larger microbatches"});
}

// Returns what the job computes again: one mode for all stages, or one a stage.
std::vector<model::Recompute> Asked(const config::JobSpec& job) {
  const std::vector<model::Recompute>& asked = job.parallelism.recompute;
  return asked.empty() ? std::vector{model::Recompute::kNone} : asked;
}

// What one microbatch takes: all passes of all layers, and those of the layer that takes longest.
struct Work {
  double all = 0, longest = 0;
};

struct RoughWay {
  Way way;
  double seconds = 0;  // of a step, about
};

// Lists ways with about what their steps take, without cutting the layers into stages.
class RoughWays {
 public:
  explicit RoughWays(JobInputs& inputs) : inputs_(inputs) {}

  void Add(const Division& division) {
    CandidateInputs inputs = inputs_.Of(division);
    // Nothing takes less than where the least is computed again.
    inputs.recompute = {std::ranges::min(inputs.recompute)};
    const auto [first, last] = SizesOf(inputs);
    const double microbatches = MicrobatchesOf(inputs.job, division);
    for (int pp_size = first; pp_size <= last; ++pp_size) {
      const Work& work = WorkOf(inputs, pp_size);
      const double mean = work.all / pp_size;
      ways_.push_back(
          {.way = {.division = division, .pp_size = pp_size, .least_seconds = microbatches * mean},
           .seconds = (microbatches + pp_size - 1) * std::max(mean, work.longest)});
    }
  }

  std::vector<RoughWay> Take() && { return std::move(ways_); }

 private:
  // Returns the smallest and the largest size of a pipeline.
  static std::pair<int, int> SizesOf(const CandidateInputs& inputs) {
    const config::Parallelism& asked = inputs.job.parallelism;
    if (asked.pipeline) return {*asked.pipeline, *asked.pipeline};
    const int by_layers = static_cast<int>(inputs.model.layers.size()) / asked.chunks.value_or(1);
    const int least = inputs.job.LeastPipeline();
    int most = std::min(by_layers, inputs.options.max_workers / inputs.MeshOf(1).size());
    if (const auto& range = inputs.job.elastic.pipeline) most = std::min(most, range->max);
    return {least, std::max(least, most)};
  }

  // Layers take longer with more ranks on their host.
  const Work& WorkOf(const CandidateInputs& inputs, int pp_size) {
    const PlanOptions& options = inputs.options;
    const profile::Conditions conditions = options.host.ConditionsOf(
        inputs.MeshOf(pp_size).size(), inputs.job.parallelism.threads, options.device);
    const auto [found, is_new] = work_.try_emplace(
        std::tuple(inputs.model.microbatch, inputs.model.tensor.size, conditions.ranks_per_host));
    if (is_new) {
      const std::vector<double> seconds = LayerSeconds(inputs, pp_size);
      found->second = {.all = std::accumulate(seconds.begin(), seconds.end(), 0.0),
                       .longest = Longest(inputs, seconds)};
    }
    return found->second;
  }

  // Returns what the longest layer takes, of those that a stage must have as a whole. On one rank
  // it does not matter.
  static double Longest(const CandidateInputs& inputs, const std::vector<double>& seconds) {
    const bool spread = ModesOf(inputs, /*pp_size=*/2).spread;
    double longest = 0;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (!spread || !profile::HasWords(inputs.model.layers[i]))
        longest = std::max(longest, seconds[i]);
    }
    return longest;
  }

  JobInputs& inputs_;
  std::map<std::tuple<int, int, int>, Work> work_;  // by microbatch, tensor and ranks on a host
  std::vector<RoughWay> ways_;
};

}  // namespace

absl::Status CheckBatch(const config::JobSpec& job) {
  const int data = job.parallelism.data.value_or(1);
  if (!job.DividesBatch(data)) {
    return InvalidField(
        {.field = "batch.global",
         .value = absl::StrCat(job.global_batch),
         .rule = absl::StrCat("must be divisible by batch.microbatch x parallelism.data = ",
                              std::int64_t{job.microbatch} * data),
         .fix = "change one of them"});
  }
  if (job.microbatch_auto && UpdatesEachBackward(job.parallelism.schedule)) {
    return InvalidField({.field = "batch.microbatch",
                         .value = "auto",
                         .rule = absl::StrCat("must be a number under ", job.parallelism.schedule,
                                              ": each microbatch is an update of its own"),
                         .fix = "name it, or use a schedule that flushes every step"});
  }
  const std::optional<config::SizeRange>& range = job.elastic.data;
  if (range.has_value() && UpdatesEachBackward(job.parallelism.schedule)) {
    return InvalidField({.field = "elastic.data",
                         .value = absl::StrCat(range->min, " to ", range->max),
                         .rule = absl::StrCat("cannot be changed under ", job.parallelism.schedule,
                                              ": each microbatch is an update of its own"),
                         .fix = "remove it, or use a schedule that flushes every step"});
  }
  return absl::OkStatus();
}

absl::StatusOr<JobInputs> JobInputs::Create(const config::JobSpec& job,
                                            const PlanOptions& options) {
  TAKT_CHECK(options.max_workers >= 0 && options.matmul_flops_per_second > 0);
  RETURN_IF_ERROR(CheckBatch(job));
  RETURN_IF_ERROR(CheckPrograms(job, options));
  ASSIGN_OR_RETURN(model::Model model, config::BuildModelOf(job, job.microbatch, options.device));
  JobInputs inputs(job, options);
  ASSIGN_OR_RETURN(inputs.divisions_, DivisionsOf(job, options, std::ssize(model.layers)));
  inputs.models_.emplace(std::pair(job.microbatch, job.parallelism.tensor), std::move(model));
  // Not every number of ranks can share the layers, nor every microbatch.
  std::erase_if(inputs.divisions_, [&](const Division& division) {
    if (division.tensor == 1) return false;
    const absl::Status status = inputs.MakeModel(division).status();
    if (!status.ok()) inputs.Refuse(division, status);
    return !status.ok();
  });
  return inputs;
}

void JobInputs::Refuse(const Division& division, const absl::Status& error) {
  const bool known = std::ranges::any_of(
      refused_, [&](const Refusal& refusal) { return refusal.mesh.tp_size == division.tensor; });
  if (known) return;
  refused_.push_back({.mesh = {.pp_size = job_->LeastPipeline(),
                               .dp_size = division.data,
                               .cp_size = job_->parallelism.context,
                               .tp_size = division.tensor},
                      .microbatch = division.microbatch,
                      .schedule = job_->parallelism.schedule,
                      .recompute = Asked(*job_),
                      .reason = std::string(error.message())});
}

absl::StatusOr<model::Model> JobInputs::MakeModel(const Division& division) const {
  config::JobSpec job = *job_;
  job.parallelism.tensor = division.tensor;
  return config::BuildModelOf(job, division.microbatch, options_->device);
}

CandidateInputs JobInputs::Of(const Division& division) {
  const std::pair key(division.microbatch, division.tensor);
  auto found = models_.find(key);
  if (found == models_.end()) {
    absl::StatusOr<model::Model> model = MakeModel(division);
    TAKT_CHECK(model.ok());  // Create has made it, or one with another size of a microbatch
    found = models_.emplace(key, *std::move(model)).first;
  }
  return {.job = *job_,
          .model = found->second,
          .options = *options_,
          .dp_size = division.data,
          .recompute = Asked(*job_),
          .shares = job_->parallelism.SharesOptimizer(),
          .frees = job_->parallelism.reshard == config::Reshard::kAlways,
          .without_barrier = job_->barrier == config::Barrier::kNever};
}

CandidateInputs JobInputs::Of(const Candidate& candidate) {
  CandidateInputs inputs = Of(Division{.data = candidate.plan.mesh.dp_size,
                                       .microbatch = candidate.plan.microbatch,
                                       .tensor = candidate.plan.mesh.tp_size});
  inputs.spread = !candidate.plan.vocabulary_ends.empty();
  inputs.shares = SharesOptimizer(candidate.plan);
  inputs.frees = FreesWeights(candidate.plan);
  inputs.without_barrier = OverlapsSteps(candidate.plan);
  return inputs;
}

std::vector<Way> WaysOf(JobInputs& inputs) {
  RoughWays all(inputs);
  for (const Division& division : inputs.divisions()) all.Add(division);
  std::vector<RoughWay> rough = std::move(all).Take();
  if (rough.size() > kMostWays) {
    std::ranges::stable_sort(rough, {}, &RoughWay::seconds);
    rough.resize(kMostWays);
  }
  for (auto& [way, seconds] : rough) {
    const CandidateInputs its = inputs.Of(way.division);
    const bool can_be_cut = way.pp_size <= std::ssize(its.model.layers);
    if (rough.size() > 1 && can_be_cut) seconds = EstimateSeconds(its, way.pp_size);
  }
  std::ranges::stable_sort(rough, {}, &RoughWay::seconds);
  std::vector<Way> ways;
  for (const RoughWay& each : rough) ways.push_back(each.way);
  return ways;
}

}  // namespace takt::plan
