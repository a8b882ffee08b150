// SPDX-License-Identifier: Apache-2.0
#include "worker/session/pipeline_runner.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/model/model.h"
#include "worker/backend/kernel_plans.h"
#include "worker/engine/engine.h"
#include "worker/session/boundary_compute.h"
#include "worker/session/curves.h"
#include "worker/session/job_ops.h"
#include "worker/session/kernel_plan.h"
#include "worker/session/memory_copies.h"
#include "worker/session/rank_checkpoints.h"
#include "worker/session/rank_connections.h"
#include "worker/session/rank_status.h"
#include "worker/session/step_reporter.h"
#include "worker/train/initial_weights.h"
#include "worker/train/inputs.h"
#include "worker/train/trainer.h"

namespace takt::session {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class PipelineRunner final : public RankRunner {
 public:
  PipelineRunner(PipelineRunnerOptions options, control::Assignment assignment)
      : options_(std::move(options)),
        assignment_(std::move(assignment)),
        rendezvous_(options_.make_rendezvous(assignment_.key)),
        connections_({.assignment = &assignment_,
                      .data = options_.data,
                      .nccl = options_.nccl,
                      .on_stuck = options_.on_stuck}) {}

  absl::StatusOr<control::Resumed> Prepare() override {
    ASSIGN_OR_RETURN(model_, config::BuildModelOf(assignment_.job, assignment_.job.microbatch,
                                                  assignment_.device,
                                                  assignment_.mesh.TpRankOf(assignment_.rank),
                                                  assignment_.mesh.DpRankOf(assignment_.rank)));
    RETURN_IF_ERROR(CheckModel());
    SetPhase("LOAD", "");
    RETURN_IF_ERROR(
        train::CheckInputs(assignment_.job, options_.data_root, assignment_.mesh.dp_size));
    RETURN_IF_ERROR(OpenCheckpoints());
    CreateCopies();
    ASSIGN_OR_RETURN(backends_, options_.make_backends(assignment_, threads()));
    SetPhase("CONNECT", "its peers to open their channels");
    RETURN_IF_ERROR(connections_.Connect(model_, *rendezvous_, *backends_));
    SetPhase("LOAD", "");
    RETURN_IF_ERROR(CreateTrainer());
    RETURN_IF_ERROR(CreateReporter());
    // Channels wait only for a short time for their other ends, and some ranks load much more.
    SetPhase("CONNECT", "all ranks to have loaded");
    RETURN_IF_ERROR(MeetAll(Meeting(), "loaded"));
    SetPhase("CONNECT", "its replicas to gather weights");
    RETURN_IF_ERROR(trainer_->Gather());
    RETURN_IF_ERROR(BeginCopies());
    SetPhase("CONNECT", "its neighbours in the pipeline to open their channels");
    RETURN_IF_ERROR(CreateEngines());
    SetPhase("CONNECT", "the start");
    if (assignment_.rank == Rank(0))
      train::AddNotes(assignment_.job, options_.data_root, resumed_.notes);
    return resumed_;
  }

  absl::StatusOr<RunEnd> Run(const std::function<void(Report)>& report) override {
    SetPhase("", "");
    const absl::StatusOr<RunEnd> end = RunSteps(report);
    if (!copies_.has_value()) return end;
    // A peer that hangs must not keep the threads that copy.
    if (!end.ok()) connections_.Abort(end.status());
    copies_->Finish();
    return end;
  }

  void Halt(bool in_memory) override {
    train::HaltRequest none = train::HaltRequest::kNone;
    if (in_memory) {
      halt_requested_.compare_exchange_strong(none, train::HaltRequest::kInMemory);
    } else {
      halt_requested_ = train::HaltRequest::kSaving;
    }
  }

  void Stop(const absl::Status& reason) override {
    rendezvous_->Abort();
    connections_.Abort(reason);
    absl::MutexLock lock(&mutex_);
    stop_reason_ = reason;
    if (checkpoints_.has_value()) checkpoints_->GiveUp();
    if (engine_ != nullptr) engine_->Abort(reason);
    if (validation_engine_ != nullptr) validation_engine_->Abort(reason);
  }

  control::RankStatus Status() const override {
    absl::MutexLock lock(&mutex_);
    control::RankStatus status = status_;
    if (validating_) {
      Describe(*validation_engine_, *assignment_.validation_program, status);
      status.instruction = absl::StrCat("EVAL ", status.instruction);
    } else if (engine_ != nullptr) {
      Describe(*engine_, assignment_.program, status);
    } else {
      status.instruction_seconds =
          static_cast<double>(options_.clock->SteadyNanos() - phase_nanos_) * 1e-9;
    }
    return status;
  }

  absl::Status Poisoned() override {
    const absl::Status status = backends_ == nullptr ? absl::OkStatus() : backends_->status();
    return status.ok() ? connections_.Poisoned() : status;
  }

 private:
  // Checks that the assignment is of its job's model.
  absl::Status CheckModel() const {
    if (assignment_.mesh.cp_size != model_.context_ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("the mesh has ", mesh::ToString(assignment_.mesh), " ranks, but of the job ",
                       model_.context_ranks, " share each sequence"));
    }
    const int layers = static_cast<int>(model_.layers.size());
    const mesh::Partition& cut = assignment_.partition;
    const int given = cut.empty() ? 0 : cut.back().last_layer.value();
    if (given == layers) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the partition covers ", given, " layers, the model has ", layers));
  }

  RankMeeting Meeting() const {
    return {.rendezvous = rendezvous_.get(),
            .rank = assignment_.rank,
            .num_ranks = assignment_.mesh.size()};
  }

  absl::Status OpenCheckpoints() {
    if (!assignment_.job.checkpoint.has_value()) return absl::OkStatus();
    SetPhase("CONNECT", "all ranks to see the checkpoint directory");
    RankCheckpointsOptions options{.assignment = &assignment_,
                                   .model = &model_,
                                   .root = options_.checkpoint_root,
                                   .data_root = options_.data_root,
                                   .threads = threads(),
                                   .meeting = Meeting(),
                                   .files = options_.files,
                                   .withdraw = options_.withdraw,
                                   .clock = options_.clock};
    {
      absl::MutexLock lock(&mutex_);
      checkpoints_.emplace(std::move(options));
      if (!stop_reason_.ok()) return stop_reason_;
    }
    return checkpoints_->Open();
  }

  // Scores the validation set as step 1, and trains nothing.
  absl::StatusOr<RunEnd> Evaluate(const std::function<void(Report)>& report) {
    const std::int64_t start_nanos = options_.clock->SteadyNanos();
    control::RankStepReport step{.rank = assignment_.rank, .step = StepId(1)};
    RETURN_IF_ERROR(Validate(step));
    step.step_seconds = static_cast<double>(options_.clock->SteadyNanos() - start_nanos) * 1e-9;
    const train::Validator& validator = *trainer_->validator();
    step.loss = validator.loss();
    step.tokens = validator.scored();
    const auto bytes = validator.bytes_per_token();
    if (bytes.ok()) step.validation_bytes_per_token = *bytes;
    if (!bytes.ok()) {
      Log(LogLevel::kWarning, "bits per byte are not known",
          {{"reason", std::string(bytes.status().message())}});
    }
    reporter_->Tell(step, report);
    return RunEnd::kLastStep;
  }

  absl::StatusOr<RunEnd> RunSteps(const std::function<void(Report)>& report) {
    if (assignment_.job.evaluation.has_value()) return Evaluate(report);
    StepId done = resumed_.step;
    // A rank on another worker than before holds no copies yet, and the next ones may be far away.
    if (keeps_copies() && resumed_.from_memory) copies_->Copy(done);
    while (done < End()) {
      ASSIGN_OR_RETURN(done, RunTo(StepId(done.value() + 1), NextBoundary(done), report));
      if (SavesAfter(done)) checkpoints_->Save(done, report);
      if (CopiesAfter(done)) copies_->Copy(done);
    }
    if (checkpoints_.has_value()) checkpoints_->Finish();
    return done < StepId(assignment_.job.steps) ? RunEnd::kHalted : RunEnd::kLastStep;
  }

  void CreateCopies() {
    if (options_.copies == nullptr) return;
    // Copies of another job would take memory that this one was promised.
    options_.copies->Begin(assignment_.key.job, assignment_.job_id);
    if (model_.config.family == model::Family::kEmulated) return;
    const control::MemoryCopies& copies = assignment_.copies;
    if (copies.every_steps == 0 && copies.at_most == StepId(0))
      return options_.copies->Forget(assignment_.key.job);
    copies_.emplace(MemoryCopiesOptions{.assignment = &assignment_,
                                        .model = &model_,
                                        .meeting = Meeting(),
                                        .kept = options_.copies,
                                        .threads = threads(),
                                        .metrics = options_.metrics});
  }

  absl::Status BeginCopies() {
    if (copies_.has_value() && !keeps_copies()) options_.copies->Forget(assignment_.key.job);
    if (!keeps_copies()) return absl::OkStatus();
    SetPhase("CONNECT", "the ranks that keep copies of its state and it of theirs");
    return copies_->Begin(connections_.host(), *trainer_->parameters(), resumed_,
                          connections_.groups().sharers());
  }

  // Returns whether there was a state to go on from. store: null for an emulated model.
  absl::StatusOr<bool> Restore(train::ParameterStore* store) {
    std::optional<control::Resumed> from_memory;
    if (copies_.has_value() && store != nullptr) {
      ASSIGN_OR_RETURN(from_memory, copies_->Restore(connections_.host(), *store));
    }
    if (from_memory.has_value()) {
      resumed_ = *std::move(from_memory);
      if (checkpoints_.has_value()) checkpoints_->KeepConfig();
    } else if (checkpoints_.has_value()) {
      ASSIGN_OR_RETURN(resumed_, checkpoints_->Restore(store));
    }
    absl::MutexLock lock(&mutex_);
    status_.last_step = resumed_.step;
    return resumed_.step > StepId(0);
  }

  absl::StatusOr<bool> LoadEvaluated(train::ParameterStore& store) {
    config::JobSpec job = assignment_.job;
    job.init_from = job.evaluation->weights;
    RETURN_IF_ERROR(
        train::InitializeWeights(job, options_.checkpoint_root, store, store.backend()));
    return true;
  }

  int threads() const { return assignment_.threads > 0 ? assignment_.threads : options_.threads; }

  absl::Status CreateTrainer() {
    std::function<absl::StatusOr<bool>(train::ParameterStore&)> restore;
    if (checkpoints_.has_value() || copies_.has_value())
      restore = [this](train::ParameterStore& store) { return Restore(&store); };
    if (assignment_.job.evaluation.has_value() && !assignment_.job.evaluation->weights.empty())
      restore = [this](train::ParameterStore& store) { return LoadEvaluated(store); };
    train::TrainerOptions options{.job = &assignment_.job,
                                  .model = &model_,
                                  .partition = &assignment_.partition,
                                  .program = &assignment_.program,
                                  .validation_program = assignment_.validation_program.has_value()
                                                            ? &*assignment_.validation_program
                                                            : nullptr,
                                  .mesh = assignment_.mesh,
                                  .rank = assignment_.rank,
                                  .vocabulary_ends = assignment_.vocabulary_ends,
                                  .backends = backends_.get(),
                                  .data_root = options_.data_root,
                                  .restore = std::move(restore),
                                  .halt_requested = &halt_requested_,
                                  .records = !connections_.waits_in_kernels()};
    connections_.groups().GiveTo(options);
    ASSIGN_OR_RETURN(trainer_, train::CreateTrainer(options));
    if (checkpoints_.has_value() && trainer_->parameters() == nullptr)
      RETURN_IF_ERROR(Restore(nullptr).status());
    ASSIGN_OR_RETURN(const std::string kernel_plan, AgreeOnKernels());
    RETURN_IF_ERROR(PrepareDevice());
    if (!checkpoints_.has_value()) return absl::OkStatus();
    return checkpoints_->Allocate(trainer_->parameters(), kernel_plan,
                                  {.vocabulary = connections_.groups().vocabulary(),
                                   .sharers = connections_.groups().sharers(),
                                   .tensor = connections_.groups().norms()});
  }

  // Agrees on a kernel plan before the first op that needs one. Returns the plan to keep in
  // checkpoints, or "" if this backend needs none or another rank keeps it.
  absl::StatusOr<std::string> AgreeOnKernels() {
    backend::KernelPlans* const kernels = backends_->kernel_plans();
    if (kernels == nullptr) return std::string();
    SetPhase("LOAD", assignment_.rank == Rank(0) ? "" : "rank 0 to choose kernels");
    const control::Assignment& a = assignment_;
    KernelPlanOptions options{
        .kernels = kernels,
        .show_ops = [&a](const auto& tell) { return ShowOps(a.job, a.partition, a.device, tell); },
        .kept = {.directory = options_.kernel_plans, .files = options_.files},
        .may_add = !a.job.exact};  // products of several Ws have shapes of their own
    if (checkpoints_.has_value()) options.checkpoint = checkpoints_->kernel_plan();
    if (resumed_.from_memory) options.checkpoint = copies_->kernel_plan();
    ASSIGN_OR_RETURN(AgreedKernelPlan agreed, AgreeOnKernelPlan(Meeting(), options));
    resumed_.kernel_plan = std::move(agreed.summary);
    for (std::string& note : agreed.notes) resumed_.notes.push_back(std::move(note));
    return std::move(agreed.text);
  }

  // Prepares all that steps will need from the device, while no rank waits for this one.
  absl::Status PrepareDevice() {
    RETURN_IF_ERROR(trainer_->Prepare());
    backend::KernelPlans* const kernels = backends_->kernel_plans();
    if (kernels == nullptr) return absl::OkStatus();
    FreezeKernelPlan(*kernels, resumed_.notes);
    if (keeps_copies()) copies_->KeepKernels(kernels->plans());
    return absl::OkStatus();
  }

  absl::Status CreateReporter() {
    std::unique_ptr<Curves> curves;
    if (options_.files != nullptr) {
      ASSIGN_OR_RETURN(curves, Curves::Open(assignment_, resumed_.step, options_.checkpoint_root,
                                            *options_.files, *options_.clock));
    }
    reporter_.emplace(StepReporterOptions{.assignment = &assignment_,
                                          .trainer = trainer_.get(),
                                          .clock = options_.clock,
                                          .metrics = options_.metrics,
                                          .curves = std::move(curves),
                                          .fp8_counters = options_.fp8_counters,
                                          .on_trace = options_.on_trace});
    return absl::OkStatus();
  }

  absl::Status CreateEngines() {
    boundary_.emplace(
        *trainer_,
        [this](StepId step) {
          if (CopiesAfter(step)) copies_->Finish();
        },
        [this](StepId step, train::HaltRequest halt) { EndAfter(step, halt); });
    RETURN_IF_ERROR(CreateEngine(assignment_.program, *boundary_, "", engine_));
    if (trainer_->validator() == nullptr) return absl::OkStatus();
    return CreateEngine(*assignment_.validation_program, *trainer_->validator(), "validation-",
                        validation_engine_);
  }

  absl::Status CreateEngine(const program::Program& program, engine::Compute& compute,
                            std::string channel_prefix, std::unique_ptr<engine::Engine>& out) {
    ASSIGN_OR_RETURN(
        auto engine,
        engine::Engine::Create(
            program, compute,
            {.transport = &connections_.messages(),
             .rank_of = [this](PpRank pp) { return assignment_.mesh.PeerOf(assignment_.rank, pp); },
             .generation = assignment_.key.generation.value(),
             .channel_prefix = std::move(channel_prefix)}));
    absl::MutexLock lock(&mutex_);
    out = std::move(engine);
    return stop_reason_;
  }

  // The last step of this run as far as it is known.
  StepId End() const { return std::min(StepId(assignment_.job.steps), StepId(halt_after_.load())); }

  // In the step before, all ranks agreed to halt after this one. Only the first such step counts.
  void EndAfter(StepId step, train::HaltRequest halt) {
    if (halt_after_.load() == kNever) {
      ends_in_memory_ = halt == train::HaltRequest::kInMemory && keeps_copies();
      halt_after_ = step.value();
    }
    engine_->EndAfter(step);
  }

  bool ValidatesAfter(StepId step) const {
    return validation_engine_ != nullptr && IsDue(step, assignment_.job.validation->every_steps);
  }
  bool SavesAfter(StepId step) const {
    return checkpoints_.has_value() && ((step == End() && !ends_in_memory_) ||
                                        IsDue(step, assignment_.job.checkpoint->every_steps));
  }
  // A run that halts copies its last step, too, so that the next generation repeats none. After the
  // job's last step nothing goes on.
  bool CopiesAfter(StepId step) const {
    return keeps_copies() && step < StepId(assignment_.job.steps) &&
           (copies_->CopiesAfter(step) || step == End());
  }
  // False also for a generation that only goes on from the copies of the last one.
  bool keeps_copies() const { return copies_.has_value() && assignment_.copies.every_steps > 0; }
  // every: 0 means only at the job's end.
  bool IsDue(StepId step, std::int64_t every) const {
    return step == StepId(assignment_.job.steps) || (every > 0 && step.value() % every == 0);
  }

  // Returns the next step after which the pipeline stops: for a validation, a checkpoint, or for
  // good.
  StepId NextBoundary(StepId done) const {
    StepId next = End();
    const auto stop_every = [&](std::int64_t steps) {
      if (steps > 0) next = std::min(next, StepId((done.value() / steps + 1) * steps));
    };
    if (validation_engine_ != nullptr) stop_every(assignment_.job.validation->every_steps);
    if (checkpoints_.has_value()) stop_every(assignment_.job.checkpoint->every_steps);
    if (copies_.has_value()) stop_every(copies_->every_steps());
    return next;
  }

  // Runs steps without a stop and returns the last one that was done. If a validation follows the
  // last step, its report is sent after that.
  absl::StatusOr<StepId> RunTo(StepId first, StepId last,
                               const std::function<void(Report)>& report) {
    std::optional<control::RankStepReport> held;
    RETURN_IF_ERROR(engine_->Run(first, last, [&](const engine::StepTiming& timing) {
      const control::RankStepReport step = Completed(timing);
      if (ValidatesAfter(timing.step)) {
        held = step;
      } else {
        reporter_->Tell(step, report);
      }
    }));
    last = std::min(last, End());
    if (held.has_value()) {
      RETURN_IF_ERROR(Validate(*held));
      reporter_->Tell(*held, report);
    }
    return last;
  }

  absl::Status Validate(control::RankStepReport& report) {
    train::Validator& validator = *trainer_->validator();
    validator.Reset();
    const StepId batches(assignment_.job.validation->batches);
    SetValidating(true);
    RETURN_IF_ERROR(validation_engine_->Run(StepId(1), batches, [](const engine::StepTiming&) {}));
    SetValidating(false);
    report.validation_loss = validator.loss();
    return absl::OkStatus();
  }

  control::RankStepReport Completed(const engine::StepTiming& timing) {
    {
      absl::MutexLock lock(&mutex_);
      status_.last_step = timing.step;
    }
    return reporter_->Completed(timing);
  }

  void SetValidating(bool validating) {
    absl::MutexLock lock(&mutex_);
    validating_ = validating;
  }

  void SetPhase(const std::string& instruction, const std::string& waiting_for) {
    absl::MutexLock lock(&mutex_);
    phase_nanos_ = options_.clock->SteadyNanos();
    status_.instruction = instruction;
    status_.waiting_for = waiting_for;
  }

  const PipelineRunnerOptions options_;
  const control::Assignment assignment_;
  std::atomic<train::HaltRequest> halt_requested_ = train::HaltRequest::kNone;
  // The last step, and whether nothing is saved for it. The thread that runs NORM_EXCHANGE sets
  // them, the step last.
  std::atomic<bool> ends_in_memory_ = false;
  std::atomic<std::int64_t> halt_after_ = kNever;

  mutable absl::Mutex mutex_;
  control::RankStatus status_ ABSL_GUARDED_BY(mutex_);
  std::int64_t phase_nanos_ ABSL_GUARDED_BY(mutex_) = 0;  // when SetPhase was called last
  bool validating_ ABSL_GUARDED_BY(mutex_) = false;       // stays true once validation has failed
  absl::Status stop_reason_ ABSL_GUARDED_BY(mutex_);

  // Each borrows from those above it, so they are destroyed in the opposite order. checkpoints_ and
  // the engines are set under the mutex, because Stop and Status read them. Only the job's thread
  // uses the others, and connections_ protects itself.
  const std::unique_ptr<AbortableRendezvous> rendezvous_;
  model::Model model_;
  control::Resumed resumed_;
  std::unique_ptr<backend::BackendFactory> backends_;
  std::optional<RankCheckpoints> checkpoints_;  // nullopt: the job saves none
  RankConnections connections_;
  std::unique_ptr<train::Trainer> trainer_;
  std::optional<MemoryCopies> copies_;  // nullopt: it neither keeps any nor goes on from any
  std::optional<StepReporter> reporter_;
  std::optional<BoundaryCompute> boundary_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Engine> validation_engine_;  // null: nothing to validate
};

}  // namespace

std::unique_ptr<RankRunner> CreatePipelineRunner(PipelineRunnerOptions options,
                                                 control::Assignment assignment) {
  return std::make_unique<PipelineRunner>(std::move(options), std::move(assignment));
}

}  // namespace takt::session
