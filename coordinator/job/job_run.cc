// SPDX-License-Identifier: Apache-2.0
// This file has the run of a Job, from the grant of its gang to its end.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/plan/copies.h"
#include "coordinator/job/blame.h"
#include "coordinator/job/fault_record.h"
#include "coordinator/job/job.h"
#include "coordinator/job/launch.h"
#include "coordinator/job/memory_source.h"
#include "coordinator/job/spec_serde.h"
#include "coordinator/placement/rank_order.h"

namespace takt::job {

using store::JobState;

namespace {

// Workers with the only state of a job that waits are reserved for it for so long. They keep the
// state as long (session::AgentOptions::keep_copies).
constexpr absl::Duration kCopiesKept = absl::Hours(1);

// Returns the checkpoint from which the next generation resumes, and the newest step that it may be
// of. Once the job has a checkpoint of its own, it resumes from that one, whatever an earlier job
// has left in the directory, unless it was told to take what is there.
std::pair<std::string, StepId> ResumeOf(const store::JobRecord& job,
                                        const config::Checkpoint& spec) {
  if (!job.checkpoint || spec.resume == "auto") return {spec.resume, StepId(0)};
  return {"auto", job.checkpoint->step};
}

bool HasBegun(const store::JobRecord& job) {
  return std::ranges::find(job.transitions, JobState::kRunning, &store::Transition::state) !=
         job.transitions.end();
}

bool IsFault(const store::JobStop& stop) {
  return (stop.state == JobState::kFailed && !stop.invalid_input) ||
         stop.state == JobState::kRecovering;
}

// Returns " instead of 4" for people if a generation has another size than the one before.
std::string InsteadOf(int size, int before) {
  return size == before ? "" : absl::StrCat(" instead of ", before);
}

// Returns the times of a job that trains again after a fault, nullopt if its last run did not end
// by one.
std::optional<RecoveryTimes> TimesOfRecovery(const std::vector<store::Transition>& transitions) {
  absl::Time running = transitions.back().time, planning = running, queued = running;
  for (auto it = transitions.rbegin() + 1; it != transitions.rend(); ++it) {
    if (it->state == JobState::kPlanning && planning == running) planning = it->time;
    if (it->state == JobState::kQueued) queued = it->time;
    if (it->state == JobState::kRunning || it->state == JobState::kPaused) return std::nullopt;
    if (it->state == JobState::kRecovering) {
      return RecoveryTimes{
          .stop = queued - it->time, .queue = planning - queued, .start = running - planning};
    }
  }
  return std::nullopt;
}

constexpr char kNotFinite[] = " is not finite";

// Returns a warning about the first step of a job whose result is no number, nullopt if this one's
// is, or if the job has been warned.
std::optional<std::string> WarnOfResult(const store::StepRecord& step,
                                        const std::vector<std::string>& notices) {
  const bool loss_is_finite = std::isfinite(step.loss);
  if (loss_is_finite && std::isfinite(step.grad_norm)) return std::nullopt;
  const auto warns = [](const std::string& notice) {
    return absl::StrContains(notice, kNotFinite);
  };
  if (std::ranges::any_of(notices, warns)) return std::nullopt;
  return absl::StrCat("the ", loss_is_finite ? "gradient norm" : "loss", " of step ",
                      step.step.value(), kNotFinite,
                      ", so do not trust the weights from that step on; cancel the job and submit "
                      "it again with a lower learning rate or a longer warm-up, from the weights "
                      "of an earlier checkpoint (model.init_from) if there is one");
}

}  // namespace

config::JobSpec Job::NextSpec() const { return HasBegun(record_) ? spec_.WithOpenSizes() : spec_; }

config::DeviceKind Job::Device() const {
  return placement::DeviceOf(spec_, record_.plan.device, context_.workers->workers());
}

plan::PlanOptions Job::OptionsFor(const config::JobSpec& spec, const placement::Gang& gang) const {
  plan::PlanOptions options =
      placement::PlanOptionsFor(spec, gang, record_.plan.device, context_.workers->workers());
  options.clipped_share = clips_.share();
  if (expert_imbalance_ > 0) options.expert_imbalance = expert_imbalance_;
  return options;
}

void Job::BeginPlanning(const std::vector<std::string>& workers, Moment now) {
  RaiseGeneration();
  record_.plan.device = Device();
  context_.workers->Reserve(workers, key());
  SetState(JobState::kPlanning,
           absl::StrCat("planning for up to ", Counted(std::ssize(workers), "worker")), now);
  const placement::Gang gang = context_.workers->Reserved(key(), record_.plan.device);
  config::JobSpec spec = NextSpec();
  plan::PlanOptions options = OptionsFor(spec, gang);
  context_.outbox->effects.push_back(
      MakePlan{record_.id, record_.generation, std::move(spec), std::move(options)});
}

void Job::Planned(absl::StatusOr<plan::Plan> plan, Moment now) {
  if (record_.state != JobState::kPlanning) return;  // cancelled or paused meanwhile
  record_.planning_ends = 0;
  const placement::Gang gang = context_.workers->Reserved(key(), record_.plan.device);
  if (!plan.ok()) {
    record_.invalid_input = absl::IsInvalidArgument(plan.status());
    record_.violations = FieldErrorsOf(plan.status());
    SetState(JobState::kFailed, std::string(plan.status().message()), now);
  } else if (plan->mesh.size() > static_cast<int>(gang.size())) {
    SetState(JobState::kQueued, "a worker left while the job was planned", now);
  } else {
    Launch(*std::move(plan), gang, now);
  }
  context_.workers->ReleaseReserved(key());
}

std::string Job::FixBits(const plan::Plan& plan) {
  if (!spec_.LeavesBitsOpen()) return "";
  std::string chosen;
  if (spec_.parallelism.data_auto) absl::StrAppend(&chosen, "; data: auto is ", plan.mesh.dp_size);
  if (spec_.microbatch_auto) absl::StrAppend(&chosen, "; microbatch: auto is ", plan.microbatch);
  if (spec_.parallelism.tensor_auto)
    absl::StrAppend(&chosen, "; tensor: auto is ", plan.mesh.tp_size);
  spec_.FixBits(plan.mesh.dp_size, plan.microbatch, plan.mesh.tp_size);
  record_.spec = WithBitsOf(record_.spec, spec_);
  return absl::StrCat(chosen, " for as long as the job lives");
}

void Job::Launch(plan::Plan plan, const placement::Gang& gang, Moment now) {
  const placement::Gang ranks = placement::PlaceRanks(gang, plan, *context_.read_profile());
  const bool reordered = !std::equal(ranks.begin(), ranks.end(), gang.begin());
  std::string chosen = FixBits(plan);
  if (plan::OverlapsSteps(plan) && spec_.barrier == config::Barrier::kAuto) {
    const int percent = static_cast<int>(100 * clips_.share().value_or(0));
    const bool clips = config::TraitsOf(spec_).clip_norm > 0;
    absl::StrAppend(
        &chosen, "; barrier: auto is false, as ",
        clips ? absl::StrCat(percent, " % of the last steps were clipped") : "nothing is clipped");
  }
  const int size_before = HasBegun(record_) ? record_.plan.mesh.size() : plan.mesh.size();
  auto launch = std::make_shared<job::Launch>();
  launch->key = key();
  launch->job = spec_;
  launch->job_id = record_.id;
  launch->owner = record_.owner;
  launch->epoch = epoch();
  launch->device = record_.plan.device;
  launch->secret = context_.random_bytes(control::kSecretBytes);
  if (spec_.checkpoint) {
    std::tie(launch->resume, launch->resume_at_most) = ResumeOf(record_, *spec_.checkpoint);
    launch->saved = SavedStep(record_);
    launch->other_jobs = context_.saving_jobs();
    std::erase(launch->other_jobs, record_.id);
  }
  Describe(plan, ranks);
  launch->threads = placement::ThreadsOf(spec_, ranks, context_.workers->workers());
  record_.ranks.clear();
  record_.lost.clear();
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const control::Hello& hello = ranks[rank]->hello;
    record_.ranks.push_back({Rank(rank), hello.worker, hello.incarnation, hello.data_address});
    past_workers_.insert(hello.worker);
    context_.workers->Bind(hello.worker, key(), Rank(rank));
  }
  launch->places = placement::PlacesOf(ranks, launch->threads, launch->device);
  launch->copies = Copies(plan, ranks, launch->places.front());
  BeginRun(plan.mesh, RankPhase::kPreparing, now);
  launch->ranks = record_.ranks;
  const int oldest = placement::OldestProtocol(ranks);
  launch->sparse_meeting = oldest >= kSparseProtocolVersion;
  launch->plain_sockets = oldest >= kPlainSocketsProtocolVersion;
  launch->sharing_chains = oldest >= kSharingChainsProtocolVersion;
  run_->replanning = ReplanningOf(spec_, plan, context_.read_profile(), now.steady);
  run_->stragglers = StragglerWatch(plan.mesh, PredictedCompute(plan));
  launch->plan = std::move(plan);
  SetState(
      JobState::kStarting,
      absl::StrCat("preparing ", Counted(std::ssize(launch->ranks), "rank"),
                   spec_.elastic.Resizes() ? InsteadOf(record_.plan.mesh.size(), size_before) : "",
                   reordered ? ", placed by measured links" : "", chosen),
      now);
  context_.outbox->effects.push_back(OpenRendezvous{key(), record_.plan.mesh.size()});
  context_.outbox->effects.push_back(BeginGeneration{launch});
  for (const control::BoundRank& bound : launch->ranks)
    context_.workers->Send(bound.worker, PrepareOf(launch, bound.rank));
}

// Says how the generation copies its state in memory, and from which copies it may resume.
control::MemoryCopies Job::Copies(const plan::Plan& plan, const placement::Gang& ranks,
                                  const profile::RankPlace& place) {
  CopyFacts facts{.spec = spec_,
                  .plan = plan,
                  .device = record_.plan.device,
                  .oldest_protocol = placement::OldestProtocol(ranks),
                  .seconds_per_byte = context_.read_profile()->FindSnapshot(place.conditions)};
  for (int rank = 0; rank < plan.mesh.size(); ++rank)
    facts.hosts.push_back(ranks[rank]->hello.host);
  CopyPlan chosen = PlanCopies(facts);
  // A job that leaves the choice to the plan, and saves files, needs no word about it.
  if (plan::AsksForCopies(spec_) && !chosen.why_none.empty())
    AddNotice(absl::StrCat("checkpoint.in_memory has no effect: ", chosen.why_none));
  record_.plan.copy_every_steps = chosen.copies.every_steps;
  const StepId committed = CommittedStep(record_);
  chosen.copies.required = committed > StepId(0) && !spec_.checkpoint;
  // A generation that keeps none, because it has one rank, may resume from those of the last one.
  const bool may_hold = chosen.copies.every_steps > 0 || record_.copies;
  // A job that has nothing but copies gets no worker that cannot read them (plan::NeededProtocol).
  if (chosen.may_restore && (may_hold || chosen.copies.required)) chosen.copies.at_most = committed;
  return chosen.copies;
}

// Writes into the record what it tells of the plan.
void Job::Describe(const plan::Plan& plan, const placement::Gang& ranks) {
  record_.plan = {
      .device = record_.plan.device,
      .schedule = plan.schedule.name,
      .mesh = plan.mesh,
      .partition = plan.partition,
      .vocabulary_ends = plan.vocabulary_ends,
      .shares_optimizer = plan::SharesOptimizer(plan),
      .predicted_step_seconds = plan.predicted_step_seconds,
      .predicted_bubble_fraction = plan.predicted_bubble_fraction,
      .warnings = plan.warnings,
      .model_flops = plan.model.FlopsPerMicrobatch() * spec_.global_batch / spec_.microbatch,
      .memory = plan.memory,
      .checkpoint_every_steps = spec_.checkpoint ? spec_.checkpoint->every_steps : 0};
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    record_.plan.matmul_flops_per_second +=
        placement::FlopsPerSecond(spec_, *ranks[rank], record_.plan.device);
  }
}

void Job::Advance(Moment now) {
  const auto ended = [](const RankRun& rank) { return rank.lost || IsTerminal(rank.phase); };
  // What is decided now depends on the last step.
  if (std::ranges::any_of(run_->ranks, ended)) CollectSteps(/*rest=*/false, now);
  if (!run_->finish_since && std::ranges::all_of(run_->ranks, ended))
    run_->finish_since = now.steady;
  // If a stop leaves nothing to wait for, the end follows at once.
  while (run_) {
    const Decision decision = Decide({.wall = context_.wait_clock.Of(now), .steady = now.steady},
                                     record_, *run_, context_.decide);
    if (decision.kind == Decision::Kind::kWait) return SetReason(decision.reason);
    Apply(decision, now);
  }
}

void Job::Apply(const Decision& decision, Moment now) {
  switch (decision.kind) {
    case Decision::Kind::kWait:
      return;
    case Decision::Kind::kStart:
      StartRun();
      SetState(JobState::kRunning, decision.reason, now);
      if (const auto times = TimesOfRecovery(record_.transitions))
        context_.outbox->recoveries.push_back(*times);
      return;
    case Decision::Kind::kStop:
      return StopRun({.state = decision.state,
                      .reason = decision.reason,
                      .invalid_input = decision.invalid_input,
                      .violations = decision.violations},
                     now);
    case Decision::Kind::kEnd:
      return EndRun(decision, now);
  }
}

void Job::StartRun() {
  const StepId resumed = run_->ranks.front().resumed_step;
  record_.memory_step = run_->ranks.front().from_memory ? resumed : StepId(0);
  if (record_.memory_step == StepId(0)) record_.resumed_step = resumed;
  // Newer checkpoints are damaged. From now on the job is held to the checkpoint that it could
  // load.
  if (record_.checkpoint && record_.checkpoint->step > resumed) record_.checkpoint->step = resumed;
  record_.kernel_plan = run_->ranks.front().kernel_plan;
  record_.copies.reset();  // from now on its ranks keep their own
  // Steps that were committed before are done again without being committed again.
  run_->steps = StepCollector(record_.plan.mesh, std::max(run_->steps.last_taken(), resumed));
  for (RankRun& rank : run_->ranks) {
    rank.phase = RankPhase::kRunning;
    context_.workers->Send(rank.bound.worker, control::Start{key()});
  }
}

template <class Command>
void Job::SendToRanks(const Command& command) {
  for (const RankRun& rank : run_->ranks) {
    if (rank.lost || IsTerminal(rank.phase)) continue;
    context_.workers->Send(rank.bound.worker, command);
  }
}

// Job::RequestHalt is in another file.
template void Job::SendToRanks(const control::Halt&);

void Job::StopRun(store::JobStop stop, Moment now) {
  SendToRanks(control::Abort{key(), stop.reason});
  // A rank that still looks for its neighbours stops looking.
  context_.outbox->effects.push_back(CloseRendezvous{record_.name});
  if (!record_.stop) run_->stop_since = now.steady;
  for (RankRun& rank : run_->ranks) {
    if (rank.away) LoseRank(rank, *std::exchange(rank.away, std::nullopt));
  }
  if (stop.state == JobState::kRecovering) SetState(JobState::kRecovering, stop.reason, now);
  record_.stop = std::move(stop);
  changed_ = true;
}

std::set<std::string> Job::CopyHolders() const {
  return record_.copies ? record_.copies->workers : std::set<std::string>();
}

bool Job::HasOnlyCopies(Moment now) const {
  return record_.copies && !spec_.checkpoint && CommittedStep(record_) > StepId(0) &&
         context_.wait_clock.Of(now) - record_.copies->since < kCopiesKept;
}

void Job::EndRun(const Decision& decision, Moment now) {
  CollectSteps(/*rest=*/true, now);
  std::vector<std::string> released;
  const bool keeps_copies = run_->keeps_copies && decision.state == JobState::kQueued;
  std::set<std::string> holders;
  for (const RankRun& rank : run_->ranks) {
    if (keeps_copies && !rank.lost) holders.insert(rank.bound.worker);
    // Workers that have not let go yet stay held. Cluster::Update releases them later. One that was
    // given up while it was silent may be heard again by now.
    if (!IsTerminal(rank.phase) || !context_.workers->Release(rank.bound.worker, key())) continue;
    context_.workers->Send(rank.bound.worker, control::Acknowledge{key(), keeps_copies});
    if (!rank.lost) released.push_back(rank.bound.worker);
  }
  // The plan is of use only if the ranks have halted for it.
  std::optional<plan::Plan> next_plan;
  if (!record_.stop && decision.state == JobState::kQueued) next_plan = std::move(run_->next_plan);
  if (record_.stop && IsFault(*record_.stop)) SettleFault(decision, now);
  record_.invalid_input = decision.invalid_input;
  record_.violations = decision.violations;
  record_.stop.reset();
  record_.halt.reset();
  record_.saving = {};
  record_.adoption.reset();
  record_.ranks.clear();
  record_.lost.clear();
  record_.copies.reset();
  if (!holders.empty())
    record_.copies = store::KeptCopies{std::move(holders), context_.wait_clock.Of(now)};
  record_.replan_gain = record_.straggler = 0;
  run_.reset();
  context_.outbox->effects.push_back(CloseRendezvous{record_.name});
  if (next_plan && GoOnWith(*std::move(next_plan), released, decision.reason, now)) return;
  context_.workers->ReleaseReserved(key());
  SetState(decision.state, decision.reason, now);
}

// Keeps what is known of the fault that ends the run.
void Job::SettleFault(const Decision& decision, Moment now) {
  record_.fault = FaultOf(*run_);
  LogFault(record_.name, record_.generation, record_.fault);
  record_.faults =
      FaultsWith(record_, *run_, {.wall = context_.wait_clock.Of(now), .steady = now.steady});
  tried_since_ = now.steady;
  const Culprit guilty = FindGuilty(*run_);
  if (decision.state == JobState::kFailed && IsOfTheJob(record_.faults, guilty, context_.decide)) {
    context_.workers->Forgive(record_.name, guilty.what, now);
  } else if (guilty.rank != nullptr) {
    context_.workers->Blame(guilty.rank->bound.worker, record_.name, guilty.what, now);
  }
  if (decision.state != JobState::kFailed) context_.outbox->recovering.push_back(record_.name);
}

void Job::CollectSteps(bool rest, Moment now) {
  for (store::StepRecord& step : rest ? run_->steps.TakeRest() : run_->steps.TakeReady()) {
    if (std::optional<std::string> warning = WarnOfResult(step, record_.notices))
      AddNotice(*std::move(warning));
    clips_.Add(step.grad_norm, config::TraitsOf(spec_).clip_norm);
    run_->stragglers.Add(step.step, std::exchange(step.busy_by_rank, {}));
    step.job_id = record_.id;
    step.generation = record_.generation;
    step.schedule = record_.plan.schedule;
    step.time = now.wall;
    record_.last_step = step;
    grown_ = true;
    context_.outbox->changes.steps.push_back(std::move(step));
  }
  const std::optional<Straggler>& slow = run_->stragglers.named();
  record_.straggler = slow ? slow->slowdown : 0;
  if (!std::exchange(run_->acknowledge, false)) return;
  // Effects come after the commit: what is acknowledged is durable.
  for (const auto& [rank, sequence] : run_->steps.TakeAcknowledgements(run_->steps.last_taken())) {
    context_.outbox->effects.push_back(
        AcknowledgeReports{run_->ranks[rank.value()].bulk, {key(), sequence}});
  }
}

}  // namespace takt::job
