// SPDX-License-Identifier: Apache-2.0
#include "tests/numerics/in_process_run.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/plan.h"
#include "worker/engine/engine.h"
#include "worker/session/rank_groups.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/inproc/inproc.h"
#include "worker/transport/staged/staged.h"

namespace takt::numerics {
namespace {

// What one rank brings home.
struct RankResult {
  absl::Status status;
  std::vector<train::StepResult> steps;
  Tensors gradients, weights;
  std::optional<double> validation_loss;
};

class RankRunner {
 public:
  RankRunner(const RunOptions& options, const plan::Plan& plan, transport::InprocHub& hub,
             Rank rank, const train::TensorObserver* observer)
      : options_(options), plan_(plan), mesh_(plan.mesh), rank_(rank), observer_(observer) {
    const int threads = options.job.parallelism.threads.value_or(1);
    backends_ = options.make_backends ? options.make_backends(threads)
                                      : backend::CreateCpuBackends({.threads = threads});
    transport_ = hub.Connect({.rank = rank, .num_ranks = mesh_.size(), .job = "numerics"});
    staged_ = transport::StageTransport(*transport_, *backends_);
  }

  RankResult Run() {
    RankResult result;
    result.status = RunSteps(result);
    if (!result.status.ok()) transport_->Abort();  // the others wait for us
    return result;
  }

 private:
  absl::StatusOr<std::unique_ptr<engine::Engine>> MakeEngine(const program::Program& program,
                                                             engine::Compute& compute,
                                                             const std::string& channel_prefix) {
    const auto rank_of = [this](PpRank pp) { return mesh_.RankOf(pp, mesh_.DpRankOf(rank_)); };
    return engine::Engine::Create(
        program, compute,
        {.transport = staged_ != nullptr ? staged_.get() : transport_.get(),
         .rank_of = rank_of,
         .channel_prefix = channel_prefix});
  }

  absl::Status RunSteps(RankResult& result) {
    const int pp_rank = mesh_.PpRankOf(rank_).value();
    const program::Program& program = plan_.programs[pp_rank];
    ASSIGN_OR_RETURN(
        const session::RankGroups groups,
        session::RankGroups::Connect(
            *transport_, {.rank = rank_,
                          .mesh = mesh_,
                          .partition = &plan_.partition,
                          .program = &program,
                          .tied_embeddings = !plan_.model.layers.back().tied_parameters.empty(),
                          .backends = backends_.get()}));
    const program::Program* validation =
        plan_.validation_programs.empty() ? nullptr : &plan_.validation_programs[pp_rank];
    ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                     train::CreateTrainer(
                         {.job = &options_.job,
                          .model = &plan_.model,
                          .partition = &plan_.partition,
                          .program = &program,
                          .validation_program = validation,
                          .mesh = mesh_,
                          .rank = rank_,
                          .backends = backends_.get(),
                          .data_root = "/",
                          .replicas = groups.replicas(),
                          .pp_group = groups.pipeline(),
                          .tied_group = groups.tied(),
                          .observer = mesh_.DpRankOf(rank_) == DpRank(0) ? observer_ : nullptr}));
    ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                     MakeEngine(program, *trainer, "train/"));
    const std::int64_t steps = options_.job.steps;
    const std::int64_t stride = options_.stop_every > 0 ? options_.stop_every : steps;
    for (std::int64_t first = 1; first <= steps; first += stride) {
      const StepId last(std::min(steps, first + stride - 1));
      RETURN_IF_ERROR(engine->Run(StepId(first), last, [&](const engine::StepTiming& timing) {
        result.steps.push_back(trainer->result(timing.step));
      }));
    }
    if (validation != nullptr) RETURN_IF_ERROR(Validate(*validation, *trainer, result));
    return TakeHome(*trainer->parameters(), result);
  }

  absl::Status Validate(const program::Program& program, train::Trainer& trainer,
                        RankResult& result) {
    train::Validator& validator = *trainer.validator();
    ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                     MakeEngine(program, validator, "validation/"));
    validator.Reset();
    RETURN_IF_ERROR(engine->Run(StepId(1), StepId(options_.job.validation->batches),
                                [](const engine::StepTiming&) {}));
    result.validation_loss = validator.loss();
    return absl::OkStatus();
  }

  static absl::Status TakeHome(const train::ParameterStore& parameters, RankResult& result) {
    const auto fetch = [&](const float* from, std::vector<float>& to, std::int64_t count) {
      to.resize(static_cast<std::size_t>(count));
      return parameters.backend().CopyToHost(reinterpret_cast<const std::byte*>(from),
                                             std::as_writable_bytes(std::span(to)));
    };
    for (const train::LayerParameters& layer : parameters.layers()) {
      for (const train::ParameterRef& ref : layer.refs) {
        if (ref.m == nullptr) continue;
        const std::int64_t count = ref.parameter->elements();
        RETURN_IF_ERROR(fetch(ref.gradient, result.gradients[ref.parameter->name], count));
        RETURN_IF_ERROR(fetch(ref.weight, result.weights[ref.parameter->name], count));
      }
    }
    return parameters.backend().Synchronize();
  }

  const RunOptions& options_;
  const plan::Plan& plan_;
  const mesh::Mesh mesh_;
  const Rank rank_;
  const train::TensorObserver* observer_;
  std::unique_ptr<backend::BackendFactory> backends_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Transport> staged_;  // null: transport_ takes messages
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Adds what `from` holds to `into`; what both hold must be equal.
absl::Status Merge(const char* what, Tensors from, Tensors& into) {
  for (auto& [name, values] : from) {
    const auto [it, inserted] = into.try_emplace(name, std::move(values));
    if (!inserted && !SameBits(it->second, values)) {
      return absl::InternalError(absl::StrCat(what, " of ", name, " differ between ranks"));
    }
  }
  return absl::OkStatus();
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
  const config::Parallelism& parallelism = options.job.parallelism;
  const int num_workers = parallelism.pipeline.value_or(1) * parallelism.data.value_or(1);
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(options.job, {.max_workers = num_workers}));
  std::mutex observer_mutex;
  const train::TensorObserver observer = [&](const std::string& name, MicrobatchId m,
                                             std::span<const float> values) {
    const std::lock_guard lock(observer_mutex);
    options.observer(name, m, values);
  };

  transport::InprocHub hub;
  std::vector<RankResult> results(plan.mesh.size());
  {
    std::vector<std::jthread> threads;
    for (Rank rank(0); rank.value() < plan.mesh.size(); ++rank) {
      threads.emplace_back([&, rank] {
        RankRunner runner(options, plan, hub, rank, options.observer ? &observer : nullptr);
        results[rank.value()] = runner.Run();
      });
    }
  }

  for (const RankResult& result : results) {
    if (!result.status.ok() && result.status.code() != absl::StatusCode::kAborted)
      return result.status;
  }
  RunResult merged;
  for (RankResult& result : results) {
    RETURN_IF_ERROR(result.status);
    if (merged.steps.empty()) {
      merged.steps = result.steps;
      merged.validation_loss = result.validation_loss;
    }
    RETURN_IF_ERROR(CheckSameSteps(merged.steps, result.steps));
    if (merged.validation_loss != result.validation_loss) {
      return absl::InternalError("ranks tell different validation losses");
    }
    RETURN_IF_ERROR(Merge("gradients", std::move(result.gradients), merged.gradients));
    RETURN_IF_ERROR(Merge("weights", std::move(result.weights), merged.weights));
  }
  return merged;
}

}  // namespace takt::numerics
