// SPDX-License-Identifier: Apache-2.0
#include "tests/numerics/in_process_run.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/slot_layout.h"
#include "common/model/split_layers.h"
#include "common/plan/plan.h"
#include "tests/testing/virtual_ranks.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/engine.h"
#include "worker/train/parameter_store.h"

namespace takt::numerics {
namespace {

// Runs of tensors' elements, by name and first element. A rank may have some rows of a table.
using Pieces = std::map<std::pair<std::string, std::int64_t>, std::vector<float>>;

// What one rank brings home.
struct RankResult {
  std::vector<train::StepResult> steps;
  std::vector<train::ExpertLoad> expert_loads;  // of the last step
  Pieces gradients, weights, first_moments, second_moments;
  std::optional<double> validation_loss;
};

absl::Status Validate(const RunOptions& options, const program::Program& program,
                      testing::VirtualRank& rank, RankResult& result) {
  train::Validator& validator = *rank.trainer().validator();
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                   rank.MakeEngine(program, validator, "validation/"));
  validator.Reset();
  RETURN_IF_ERROR(engine->Run(StepId(1), StepId(options.job.validation->batches),
                              [](const engine::StepTiming&) {}));
  result.validation_loss = validator.loss();
  return absl::OkStatus();
}

bool SharesOptimizer(const RunOptions& options) {
  return options.job.parallelism.SharesOptimizer();
}

// Calls `visit` for each run of the whole parameter's elements that the rank has.
absl::Status ForEachRunOf(const train::ParameterRef& ref,
                          absl::FunctionRef<absl::Status(const model::ElementRun&)> visit) {
  if (!ref.parameter->by_word) return model::ForEachRun(*ref.parameter, visit);
  return visit({.whole = ref.first_element(), .count = ref.elements()});
}

// Returns the part of the run whose weights the rank keeps. `here` counts from the first of these.
model::ElementRun KeptOf(const train::ParameterRef& ref, const model::ElementRun& run) {
  const layout::FloatRun kept = ref.kept_run();
  const std::int64_t first = std::max(run.here, kept.first);
  const std::int64_t end = std::min(run.here + run.count, kept.end());
  return {.here = first - kept.first,
          .whole = run.whole + (first - run.here),
          .count = std::max<std::int64_t>(end - first, 0)};
}

// Fills the store with the state that a run left.
absl::StatusOr<bool> Restore(const RunResult& from, train::ParameterStore& store) {
  for (const train::ParameterRef* const ref : store.trained()) {
    RETURN_IF_ERROR(ForEachRunOf(*ref, [&](const model::ElementRun& run) {
      const auto copy = [&](const Tensors& tensors, const model::ElementRun& part, float* to) {
        if (to == nullptr || part.count == 0) return;
        std::copy_n(tensors.at(ref->parameter->name).begin() + part.whole, part.count,
                    to + part.here);
      };
      copy(from.weights, KeptOf(*ref, run), ref->kept_weights());
      copy(from.first_moments, run, ref->m);
      copy(from.second_moments, run, ref->v);
      return absl::OkStatus();
    }));
  }
  return true;
}

absl::Status TakeHome(const RunOptions& options, const train::ParameterStore& parameters,
                      RankResult& result) {
  const auto fetch = [&](const float* from, std::vector<float>& to, std::int64_t count) {
    to.resize(static_cast<std::size_t>(count));
    return parameters.backend().CopyToHost(reinterpret_cast<const std::byte*>(from),
                                           std::as_writable_bytes(std::span(to)));
  };
  for (const train::LayerParameters& layer : parameters.layers()) {
    for (const train::ParameterRef& ref : layer.refs) {
      if (!ref.updated) continue;
      RETURN_IF_ERROR(ForEachRunOf(ref, [&](const model::ElementRun& run) -> absl::Status {
        const model::ElementRun kept = KeptOf(ref, run);
        if (kept.count > 0) {
          RETURN_IF_ERROR(fetch(ref.kept_weights() + kept.here,
                                result.weights[{ref.parameter->name, kept.whole}], kept.count));
        }
        if (SharesOptimizer(options)) return absl::OkStatus();
        const std::pair piece(ref.parameter->name, run.whole);
        RETURN_IF_ERROR(fetch(ref.gradient + run.here, result.gradients[piece], run.count));
        if (ref.m != nullptr)
          RETURN_IF_ERROR(fetch(ref.m + run.here, result.first_moments[piece], run.count));
        if (ref.v != nullptr)
          RETURN_IF_ERROR(fetch(ref.v + run.here, result.second_moments[piece], run.count));
        return absl::OkStatus();
      }));
    }
  }
  return parameters.backend().Synchronize();
}

absl::Status RunSteps(const RunOptions& options, const plan::Plan& plan, testing::VirtualRank& rank,
                      RankResult& result) {
  train::Trainer& trainer = rank.trainer();
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                   rank.MakeEngine(rank.program(), trainer, "train/"));
  const std::int64_t steps = options.job.steps;
  const std::int64_t stride = options.stop_every > 0 ? options.stop_every : steps;
  const std::int64_t done = options.resume == nullptr ? 0 : std::ssize(options.resume->steps);
  for (std::int64_t first = done + 1; first <= steps; first += stride) {
    const StepId last(std::min(steps, first + stride - 1));
    RETURN_IF_ERROR(engine->Run(StepId(first), last, [&](const engine::StepTiming& timing) {
      result.steps.push_back(trainer.result(timing.step));
      result.expert_loads = trainer.expert_loads(timing.step);
    }));
  }
  if (!plan.validation_programs.empty()) {
    const int pp_rank = rank.program().pp_rank.value();
    RETURN_IF_ERROR(Validate(options, plan.validation_programs[pp_rank], rank, result));
  }
  return TakeHome(options, *trainer.parameters(), result);
}

// Returns the model of each of the ranks that split layers. job: names their number and leaves.
absl::StatusOr<std::vector<model::Model>> ModelsOfTensorRanks(const config::JobSpec& job,
                                                              const RunOptions& options,
                                                              const plan::Plan& plan) {
  std::vector<model::Model> models;
  for (int rank = 0; rank < options.tensor.size; ++rank) {
    ASSIGN_OR_RETURN(model::Model model,
                     config::BuildModelOf(job, plan.microbatch, options.planned_for, TpRank(rank)));
    models.push_back(std::move(model));
  }
  return models;
}

// Returns the model of each of the ranks that share experts.
absl::StatusOr<std::vector<model::Model>> ModelsOfExpertRanks(const RunOptions& options,
                                                              const plan::Plan& plan) {
  std::vector<model::Model> models;
  for (DpRank rank(0); rank.value() < options.job.parallelism.expert; ++rank) {
    ASSIGN_OR_RETURN(model::Model model,
                     config::BuildModelOf(options.job, plan.microbatch, options.planned_for,
                                          std::nullopt, rank));
    models.push_back(std::move(model));
  }
  return models;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Adds what `from` holds to `into`; what both hold must be equal.
absl::Status Merge(const char* what, Pieces from, Pieces& into) {
  for (auto& [piece, values] : from) {
    const auto [it, inserted] = into.try_emplace(piece, values);
    if (inserted) continue;
    // One rank may keep more of a tensor than another.
    const std::size_t both = std::min(it->second.size(), values.size());
    if (!SameBits(std::span(it->second).first(both), std::span(values).first(both)))
      return absl::InternalError(absl::StrCat(what, " of ", piece.first, " differ between ranks"));
    if (values.size() > both) it->second = std::move(values);
  }
  return absl::OkStatus();
}

// Returns whole tensors. The pieces of each adjoin, or lie in others, whose values they have.
absl::StatusOr<Tensors> Joined(const Pieces& pieces) {
  Tensors tensors;
  for (const auto& [piece, values] : pieces) {
    std::vector<float>& tensor = tensors[piece.first];
    const std::int64_t end = piece.second + std::ssize(values);
    if (end <= std::ssize(tensor)) {
      const auto same = std::span(tensor).subspan(static_cast<std::size_t>(piece.second));
      if (SameBits(same.first(values.size()), values)) continue;
      return absl::InternalError(absl::StrCat(piece.first, " differs between ranks"));
    }
    if (std::ssize(tensor) != piece.second) {
      return absl::InternalError(absl::StrCat(piece.first, " has a piece from element ",
                                              piece.second, " on, after ", tensor.size()));
    }
    tensor.insert(tensor.end(), values.begin(), values.end());
  }
  return tensors;
}

absl::Status CheckSameSteps(const std::vector<train::StepResult>& a,
                            const std::vector<train::StepResult>& b) {
  if (a.size() != b.size()) return absl::InternalError("ranks ran different numbers of steps");
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!SameBits(a[i].loss, b[i].loss) || !SameBits(a[i].grad_norm, b[i].grad_norm) ||
        a[i].tokens != b[i].tokens) {
      return absl::InternalError(absl::StrCat("ranks tell different results of step ", i + 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunResult> TrainInProcess(const RunOptions& options) {
  config::JobSpec planned = options.job;
  if (options.tensor.splits()) {
    planned.parallelism.tensor = options.tensor.size;
    planned.parallelism.tensor_leaves = options.tensor.leaves;
  }
  const config::Parallelism& parallelism = planned.parallelism;
  const int num_workers = parallelism.pipeline.value_or(1) * parallelism.data.value_or(1) *
                          parallelism.RanksPerReplica();
  if (options.planned_without_barrier) planned.barrier = config::Barrier::kNever;
  ASSIGN_OR_RETURN(plan::Plan plan, plan::MakePlan(planned, {.max_workers = num_workers,
                                                             .device = options.planned_for}));
  std::vector<model::Model> models;
  if (options.tensor.splits()) {
    ASSIGN_OR_RETURN(models, ModelsOfTensorRanks(planned, options, plan));
  } else if (parallelism.expert > 1) {
    ASSIGN_OR_RETURN(models, ModelsOfExpertRanks(options, plan));
  }
  if (options.head_slice > 0) {
    plan.model.head_slice = options.head_slice;
    for (model::Model& model : models) model.head_slice = options.head_slice;
  }
  std::mutex observer_mutex;
  const train::TensorObserver observer = [&](const std::string& name, MicrobatchId m,
                                             std::span<const float> values) {
    const std::lock_guard lock(observer_mutex);
    options.observer(name, m, values);
  };

  testing::VirtualRanks::Options ranks_options{.job = &options.job,
                                               .plan = &plan,
                                               .models = std::move(models),
                                               .device = options.device,
                                               .observer = options.observer ? &observer : nullptr,
                                               .pairs_beside = options.pairs_beside};
  if (options.resume != nullptr) {
    ranks_options.restore = [&](train::ParameterStore& store) {
      return Restore(*options.resume, store);
    };
  }
  if (options.device == nullptr) {
    ranks_options.make_backends = [&] {
      const int threads = parallelism.threads.value_or(1);
      return options.make_backends ? options.make_backends(threads)
                                   : backend::CreateCpuBackends({.threads = threads});
    };
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<testing::VirtualRanks> ranks,
                   testing::VirtualRanks::Create(ranks_options));
  std::vector<RankResult> results(plan.mesh.size());
  RETURN_IF_ERROR(ranks->ForAll([&](testing::VirtualRank& rank) {
    return RunSteps(options, plan, rank, results[rank.rank().value()]);
  }));
  RunResult merged;
  Pieces gradients, weights, first_moments, second_moments;
  for (RankResult& result : results) {
    if (merged.steps.empty()) {
      merged.steps = result.steps;
      merged.validation_loss = result.validation_loss;
    }
    RETURN_IF_ERROR(CheckSameSteps(merged.steps, result.steps));
    merged.expert_loads.insert(merged.expert_loads.end(), result.expert_loads.begin(),
                               result.expert_loads.end());
    if (merged.validation_loss != result.validation_loss) {
      return absl::InternalError("ranks tell different validation losses");
    }
    RETURN_IF_ERROR(Merge("gradients", std::move(result.gradients), gradients));
    RETURN_IF_ERROR(Merge("weights", std::move(result.weights), weights));
    RETURN_IF_ERROR(Merge("first moments", std::move(result.first_moments), first_moments));
    RETURN_IF_ERROR(Merge("second moments", std::move(result.second_moments), second_moments));
  }
  ASSIGN_OR_RETURN(merged.gradients, Joined(gradients));
  ASSIGN_OR_RETURN(merged.weights, Joined(weights));
  ASSIGN_OR_RETURN(merged.first_moments, Joined(first_moments));
  ASSIGN_OR_RETURN(merged.second_moments, Joined(second_moments));
  return merged;
}

}  // namespace takt::numerics
