// SPDX-License-Identifier: Apache-2.0
// Cluster: decisions applied to jobs.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/fault_record.h"

namespace takt::job {
namespace {

using config::DeviceKind;
using store::JobState;

// Which checkpoint the next generation goes on from, and the newest that it may be. Once the job
// has one of its own, that is what it means, whatever an earlier one has left in the directory;
// unless it was told to take what is there.
std::pair<std::string, StepId> ResumeOf(const store::JobRecord& job,
                                        const config::Checkpoint& spec) {
  if (!job.checkpoint || spec.resume == "auto") return {spec.resume, StepId(0)};
  return {"auto", job.checkpoint->step};
}

bool IsFault(const store::JobStop& stop) {
  return (stop.state == JobState::kFailed && !stop.invalid_input) ||
         stop.state == JobState::kRecovering;
}

// Of one microbatch; what is computed twice counts once.
double ModelFlops(const model::Model& model) {
  double flops = 0;
  for (const model::Layer& layer : model.layers)
    flops += layer.cost.forward_flops + layer.cost.input_grad_flops + layer.cost.weight_grad_flops;
  return flops;
}

// Of a job that trains again after a fault; nothing if the last run did not end by one.
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

}  // namespace

void Cluster::Advance(JobEntry& job, Moment now) {
  const auto ended = [](const RankRun& rank) { return rank.lost || IsTerminal(rank.phase); };
  // What is decided now depends on the last step.
  if (std::ranges::any_of(job.run->ranks, ended)) CollectSteps(job, /*rest=*/false, now);
  if (!job.run->finish_since && std::ranges::all_of(job.run->ranks, ended))
    job.run->finish_since = now.steady;
  // A stop may leave nothing to wait for: then the end follows at once.
  while (job.run) {
    const Decision decision = Decide(now.steady, *job.run, options_.decide);
    if (decision.kind == Decision::Kind::kWait) {
      SetReason(job, decision.reason);
      return;
    }
    Apply(job, decision, now);
  }
}

void Cluster::Apply(JobEntry& job, const Decision& decision, Moment now) {
  switch (decision.kind) {
    case Decision::Kind::kWait:
      return;
    case Decision::Kind::kStart:
      StartRun(job);
      SetState(job, JobState::kRunning, decision.reason, now);
      if (const auto times = TimesOfRecovery(job.record.transitions))
        outbox_.recoveries.push_back(*times);
      return;
    case Decision::Kind::kStop:
      StopRun(job,
              {.state = decision.state,
               .reason = decision.reason,
               .invalid_input = decision.invalid_input,
               .violations = decision.violations},
              now);
      return;
    case Decision::Kind::kEnd:
      EndRun(job, decision, now);
      return;
  }
}

void Cluster::StartRun(JobEntry& job) {
  job.run->state = JobState::kRunning;
  job.record.resumed_step = job.run->ranks.front().resumed_step;
  job.record.kernel_plan = job.run->ranks.front().kernel_plan;
  // Steps that were committed before are done again without being committed again.
  job.run->committed_steps = std::max(job.run->committed_steps, job.record.resumed_step.value());
  job.steps.emplace(job.record.plan.mesh, StepId(job.run->committed_steps));
  for (RankRun& rank : job.run->ranks) {
    rank.phase = RankPhase::kRunning;
    SendTo(rank.bound.worker, control::Start{{job.record.name, job.record.generation}});
  }
}

void Cluster::StopRun(JobEntry& job, store::JobStop stop, Moment now) {
  for (const RankRun& rank : job.run->ranks) {
    if (rank.lost || IsTerminal(rank.phase)) continue;
    SendTo(rank.bound.worker,
           control::Abort{{job.record.name, job.record.generation}, stop.reason});
  }
  // Who still looks for its neighbours stops looking.
  outbox_.effects.push_back([this, name = job.record.name] { rendezvous_->Close(name); });
  if (!job.run->stop) job.run->stop_since = now.steady;
  if (stop.state == JobState::kRecovering) CountRecovery(job, stop.reason, now);
  job.run->stop = stop;
  job.record.stop = std::move(stop);
  Touch(job);
}

void Cluster::CountRecovery(JobEntry& job, const std::string& reason, Moment now) {
  store::Recoveries& recoveries = job.record.recoveries;
  const StepId last(job.run->committed_steps);
  outbox_.recovering.push_back(job.record.name);
  recoveries = {.count = last > recoveries.at_step ? 1 : recoveries.count + 1, .at_step = last};
  job.run->state = JobState::kRecovering;
  SetState(job, JobState::kRecovering, reason, now);
}

void Cluster::EndRun(JobEntry& job, const Decision& decision, Moment now) {
  CollectSteps(job, /*rest=*/true, now);
  const control::JobKey key{job.record.name, job.record.generation};
  for (const RankRun& rank : job.run->ranks) {
    // Those that have not let go yet stay held: their late word is acknowledged when it comes
    // (Update).
    if (rank.lost || !IsTerminal(rank.phase)) continue;
    SendTo(rank.bound.worker, control::Acknowledge{key});
    members_.Release(rank.bound.worker);
  }
  if (job.run->stop && IsFault(*job.run->stop)) {
    job.record.fault = FaultOf(*job.run);
    LogFault(job.record.name, job.record.generation, job.record.fault);
  }
  job.record.invalid_input = decision.invalid_input;
  job.record.violations = decision.violations;
  job.record.stop.reset();
  job.record.halt.reset();
  job.record.saving = {};
  job.record.ranks.clear();
  job.commit.reset();
  job.run.reset();
  job.steps.reset();
  job.bulk.clear();
  job.acknowledge = false;
  outbox_.effects.push_back([this, name = job.record.name] { rendezvous_->Close(name); });
  SetState(job, decision.state, decision.reason, now);
}

void Cluster::ServeQueue(Moment now) {
  std::vector<std::pair<std::string, placement::Need>> waiting;
  std::vector<JobEntry*> entries;
  for (auto& [number, job] : jobs_) {
    if (job.record.state != JobState::kQueued) continue;
    waiting.emplace_back(job.record.name, placement::NeedOf(job.spec, DeviceOf(job)));
    entries.push_back(&job);
  }
  if (waiting.empty()) return;
  const std::vector<placement::Grant> grants =
      placement::GrantGangs(waiting, placement::CapacityOf(members_.workers()));
  for (std::size_t i = 0; i < grants.size(); ++i) {
    if (grants[i].workers.empty()) {
      SetReason(*entries[i], grants[i].reason);
    } else {
      BeginPlanning(*entries[i], grants[i].workers, now);
    }
  }
}

DeviceKind Cluster::DeviceOf(const JobEntry& job) const {
  return placement::DeviceOf(job.spec, job.record.plan.device, members_.workers());
}

void Cluster::BeginPlanning(JobEntry& job, const std::vector<std::string>& workers, Moment now) {
  ++job.record.generation;
  job.reserved = workers;
  const DeviceKind device = DeviceOf(job);
  job.record.plan.device = device;
  placement::Gang gang;
  for (const std::string& name : workers) {
    members_.SetHold(name, {{job.record.name, job.record.generation}, Rank(-1)});
    gang.push_back(members_.Find(name));
  }
  const plan::PlanOptions options = placement::PlanOptionsFor(gang, device);
  SetState(job, JobState::kPlanning,
           absl::StrCat("planning for up to ", workers.size(), " workers"), now);
  outbox_.effects.push_back(
      [this, request = PlanRequest{job.record.id, job.record.generation, job.spec, options}] {
        options_.plan(request);
      });
}

void Cluster::Planned(const std::string& job_id, Generation generation,
                      absl::StatusOr<plan::Plan> plan, Moment now) {
  const auto it = std::ranges::find_if(
      jobs_, [&](const auto& entry) { return entry.second.record.id == job_id; });
  if (it == jobs_.end()) return;
  JobEntry& job = it->second;
  if (job.record.state != JobState::kPlanning || job.record.generation != generation)
    return;  // cancelled meanwhile
  if (!plan.ok()) {
    ReleaseReserved(job);
    job.record.invalid_input = absl::IsInvalidArgument(plan.status());
    job.record.violations = FieldErrorsOf(plan.status());
    SetState(job, JobState::kFailed, std::string(plan.status().message()), now);
    return;
  }
  std::erase_if(job.reserved, [&](const std::string& name) {
    const membership::Worker& worker = *members_.Find(name);
    if (worker.drained || worker.leaving) members_.Release(name);
    return worker.drained || worker.leaving;
  });
  if (plan->mesh.size() > static_cast<int>(job.reserved.size())) {
    ReleaseReserved(job);
    SetState(job, JobState::kQueued, "a worker left while the job was planned", now);
    return;
  }
  Launch(job, *std::move(plan), now);
}

void Cluster::Launch(JobEntry& job, plan::Plan plan, Moment now) {
  const control::JobKey key{job.record.name, job.record.generation};
  auto launch = std::make_shared<job::Launch>();
  launch->key = key;
  launch->job = job.spec;
  launch->device = job.record.plan.device;
  launch->secret = options_.random_bytes(control::kSecretBytes);
  if (job.spec.checkpoint)
    std::tie(launch->resume, launch->resume_at_most) = ResumeOf(job.record, *job.spec.checkpoint);
  job.record.ranks.clear();
  job.run = MakeRun(job, now);
  job.run->state = JobState::kStarting;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const membership::Worker& worker = *members_.Find(job.reserved[rank]);
    const control::Hello& hello = worker.hello;
    launch->threads.push_back(placement::ThreadsOf(job.spec, worker, members_.workers()));
    job.record.ranks.push_back({Rank(rank), hello.worker, hello.incarnation, hello.data_address});
    job.hands.insert(hello.worker);
    members_.SetHold(hello.worker, {key, Rank(rank)});
    job.run->ranks.push_back({.bound = job.record.ranks.back()});
    job.run->ranks.back().status = {.rank = Rank(rank), .worker = hello.worker};
  }
  for (std::size_t i = job.record.ranks.size(); i < job.reserved.size(); ++i)
    members_.Release(job.reserved[i]);
  job.reserved.clear();
  job.record.plan = {
      .device = launch->device,
      .schedule = plan.schedule.name,
      .mesh = plan.mesh,
      .partition = plan.partition,
      .predicted_step_seconds = plan.predicted_step_seconds,
      .predicted_bubble_fraction = plan.predicted_bubble_fraction,
      .warnings = plan.warnings,
      .model_flops = ModelFlops(plan.model) * job.spec.global_batch / job.spec.microbatch,
      .checkpoint_every_steps = job.spec.checkpoint ? job.spec.checkpoint->every_steps : 0};
  for (const MemoryBytes& memory : plan.memory)
    job.record.plan.memory_bytes.push_back(memory.total());
  for (const control::BoundRank& bound : job.record.ranks) {
    job.record.plan.matmul_flops_per_second +=
        placement::FlopsPerSecond(*members_.Find(bound.worker), launch->device);
  }
  job.steps.emplace(plan.mesh, StepId(job.run->committed_steps));
  launch->ranks = job.record.ranks;
  launch->plan = std::move(plan);
  SetState(job, JobState::kStarting, absl::StrCat("preparing ", launch->ranks.size(), " ranks"),
           now);
  outbox_.effects.push_back([this, key] { rendezvous_->Open(key.job, key.generation); });
  if (options_.on_launch) {
    outbox_.effects.push_back([this, launch] { options_.on_launch(*launch); });
  }
  for (const control::BoundRank& bound : launch->ranks)
    SendTo(bound.worker, PrepareOf(launch, bound.rank));
}

void Cluster::ReleaseReserved(JobEntry& job) {
  for (const std::string& worker : job.reserved) members_.Release(worker);
  job.reserved.clear();
}

}  // namespace takt::job
