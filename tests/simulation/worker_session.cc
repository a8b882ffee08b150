// SPDX-License-Identifier: Apache-2.0
// This file has what a WorkerProcess does with commands, in place of session::Agent, and with
// checkpoints, in place of session::CheckpointCommitter.
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"
#include "tests/simulation/worker_life.h"
#include "worker/session/checkpoint_committer.h"
#include "worker/session/rank_description.h"

namespace takt::simulation {

void WorkerProcess::OnCommand(const LifePtr& life, std::int64_t epoch,
                              const control::Command& command) {
  life->heard = true;
  if (const auto* const welcome = std::get_if<control::Welcome>(&command))
    return OnWelcome(life, *welcome, epoch);
  if (const auto* const adopt = std::get_if<control::Adopt>(&command))
    return OnAdopt(life, adopt->key);
  const bool asks = std::holds_alternative<control::Describe>(command);
  if (asks || !life->fence.Refuses(epoch)) return Obey(life, command);
  world_.trace.Add(name_, "refuses a command of epoch ", epoch);
}

void WorkerProcess::Obey(const LifePtr& life, const control::Command& command) {
  const absl::Duration now = world_.loop.now();
  std::visit(
      Overloaded{[&](const control::Prepare& prepare) {
                   life->decode = prepare.assignment;
                   Apply(life, life->held.Prepare(prepare.key, prepare.rank));
                 },
                 [&](const control::Start& start) { Apply(life, life->held.Start(start.key)); },
                 [&](const control::Abort& abort) {
                   Apply(life, life->held.Abort(abort.key, abort.reason, StatusOf(*life), now));
                 },
                 [&](const control::Acknowledge& acknowledge) {
                   if (!acknowledge.keeps_copies) life->kept.Forget(acknowledge.key.job);
                   Apply(life, life->held.Acknowledge(acknowledge.key));
                 },
                 [&](const control::Halt& halt) { Apply(life, life->held.Halt(halt.key)); },
                 [&](const control::CommitCheckpoint& commit) {
                   life->commits.push_back(commit);
                   PumpCommits(life);
                 },
                 [&](const control::Describe& describe) {
                   if (life->held.Holds(describe.key)) Describe(life, describe.whole);
                 },
                 [](const auto&) {}},
      command);
}

void WorkerProcess::OnWelcome(const LifePtr& life, const control::Welcome& welcome,
                              std::int64_t epoch) {
  const bool holds = life->held.state() != session::RankLifecycle::State::kIdle;
  const std::optional<control::CommandsRefused> refused =
      life->fence.Welcome(welcome.cluster_id, epoch, holds);
  life->welcomed = true;
  life->obeys = !refused.has_value();
  if (refused) {
    world_.trace.Add(name_, "refuses the coordinator: ", refused->reason);
    Send(life, *refused);
    if (refused->cause == control::RefusalCause::kLaterEpoch) return;
  } else {
    world_.trace.Add(name_, "is attached");
  }
  Apply(life, life->held.Attached());
  if (life->dead || refused || std::exchange(life->has_bulk, true)) return;
  DialBulk(life);
}

void WorkerProcess::OnAdopt(const LifePtr& life, const control::JobKey& key) {
  if (!life->held.Holds(key) || !life->fence.Adopt()) return;
  world_.trace.Add(name_, "is adopted with its rank of ", key.job);
  life->obeys = true;
  life->outbox.Resend();
  Apply(life, life->held.Attached());
  if (life->dead) return;
  if (std::exchange(life->has_bulk, true)) {
    PumpBulk(life);
  } else {
    DialBulk(life);
  }
}

void WorkerProcess::Describe(const LifePtr& life, bool whole) {
  const session::BulkOutbox::Acknowledged acknowledged = life->outbox.acknowledged();
  control::RankDescription description{.key = life->held.key(),
                                       .rank = life->held.rank(),
                                       .acknowledged_step = acknowledged.step,
                                       .acknowledged_checkpoint = acknowledged.checkpoint,
                                       .epoch = life->fence.epoch(),
                                       .resumed = life->held.resumed().step,
                                       .from_memory = life->held.resumed().from_memory};
  const control::Assignment* const assignment =
      life->rank == nullptr ? nullptr : life->rank->assignment();
  if (assignment != nullptr) {
    const session::SharedPart shared = session::SharedPartOf(*assignment);
    description.assignment_hash = shared.hash;
    if (whole) session::DescribeJob(shared, world_.disk.root(), description);
  }
  Send(life, description);
}

void WorkerProcess::Acknowledged(const LifePtr& life, const control::ReportsAcknowledged& reports) {
  life->outbox.Acknowledge(reports.key, reports.sequence);
  CheckFlushed(life);
}

void WorkerProcess::CheckFlushed(const LifePtr& life) {
  if (life->held.state() != session::RankLifecycle::State::kFlushing) return;
  if (!life->outbox.AllAcknowledged()) return;
  Apply(life, life->held.Flushed(StatusOf(*life), world_.loop.now()));
}

control::RankStatus WorkerProcess::StatusOf(const Life& life) const {
  if (life.rank != nullptr) return life.rank->Status();
  return {.rank = life.held.rank(), .worker = name_};
}

void WorkerProcess::Apply(const LifePtr& life, const session::Effects& effects) {
  for (const session::Effect& effect : effects) {
    if (life->dead) return;
    std::visit(Overloaded{[&](const session::EffectBuild& build) { Build(life, build.key); },
                          [&](const session::EffectRun&) {
                            world_.oracle.RankBegins(life->held.key(), life->held.rank(), name_);
                            life->rank->Run();
                          },
                          [&](const session::EffectHalt&) { life->rank->Halt(); },
                          [&](const session::EffectHeartbeat&) { SendHeartbeat(life); },
                          [&](const session::EffectStop& stop) {
                            life->outbox.EndWaits();
                            if (life->rank != nullptr) life->rank->Stop(stop.reason);
                          },
                          [&](const session::EffectRelease&) {
                            life->outbox.EndWaits();
                            if (life->rank != nullptr) life->rank->Release();
                          },
                          [&](const session::EffectSend& send) {
                            control::JobUpdate update = send.update;
                            update.status.rank = update.rank;
                            update.status.worker = name_;
                            const bool sent = Send(life, update);
                            world_.trace.Add(
                                name_, Name(update.phase), " rank ", update.rank.value(), " of ",
                                update.key.job, " ", update.key.generation.value(),
                                sent ? "" : " (not sent)", update.failure.error.empty() ? "" : ": ",
                                update.failure.error);
                          },
                          [&](const session::EffectLeaving& leaving) {
                            if (Send(life, control::Leaving{leaving.reason})) return;
                            Apply(life, life->held.Detached(StatusOf(*life), world_.loop.now()));
                          },
                          [&](const session::EffectExit& exit) { Exit(life, exit); }},
               effect);
  }
}

void WorkerProcess::Exit(const LifePtr& life, const session::EffectExit& exit) {
  world_.trace.Add(name_, "exits with ", exit.code, ": ", exit.reason);
  if (life != life_) return;
  Kill(/*told=*/true);
  on_exit_();
}

void WorkerProcess::Build(const LifePtr& life, const control::JobKey& key) {
  TAKT_CHECK(life->decode != nullptr);
  life->outbox.BeginJob(key, life->held.rank());
  life->has_begun = true;
  life->reported = key;
  life->reported_steps.clear();
  life->first_report = true;
  life->rank = std::make_shared<RankWork>(&world_, &coordinator_, &plane_, HostOf(life));
  life->rank->Begin(std::exchange(life->decode, nullptr));
}

// The life owns the rank's work, so what the work keeps must not own the life.
RankHost WorkerProcess::HostOf(const LifePtr& life) {
  const std::weak_ptr<Life> weak = life;
  const auto with_life = [weak](const auto& call) {
    if (const LifePtr alive = weak.lock(); alive != nullptr && !alive->dead) call(alive);
  };
  return {.worker = name_,
          .path = &path_,
          .files = life->files,
          .kept = &life->kept,
          .later =
              [this, with_life](absl::Duration delay, std::function<void()> action) {
                with_life([&](const LifePtr& alive) { Later(alive, delay, std::move(action)); });
              },
          .use_disk =
              [this, weak](const std::function<void()>& action) {
                const LifePtr alive = weak.lock();
                return alive != nullptr && UseDisk(alive, action);
              },
          .slowness = [this] { return world_.loop.now() < slow_until_ ? slowness_ : 1.0; },
          .built =
              [this, with_life](const absl::StatusOr<control::Resumed>& resumed) {
                with_life([&](const LifePtr& alive) {
                  Apply(alive, alive->held.Built(resumed, world_.loop.now()));
                });
              },
          .report =
              [this, with_life](session::Report report) {
                with_life([&](const LifePtr& alive) { Report(alive, std::move(report)); });
              },
          .run_ended =
              [this, with_life](const absl::StatusOr<session::RunEnd>& end) {
                with_life([&](const LifePtr& alive) {
                  Apply(alive, alive->held.RunEnded(end, StatusOf(*alive), world_.loop.now()));
                  if (!alive->dead) CheckFlushed(alive);
                });
              },
          .gone =
              [this, with_life] {
                with_life([&](const LifePtr& alive) {
                  alive->rank = nullptr;
                  Apply(alive, alive->held.Gone());
                });
              }};
}

void WorkerProcess::Report(const LifePtr& life, session::Report report) {
  life->reported_steps.push_back(std::visit([](const auto& part) { return part.step; }, report));
  life->outbox.AddReport(std::move(report));
  if (std::exchange(life->first_report, false)) Apply(life, life->held.FirstStepDone());
  if (!life->dead) PumpBulk(life);
}

void WorkerProcess::PumpCommits(const LifePtr& life) {
  if (life->commits.empty() || std::exchange(life->committing, true)) return;
  const control::CommitCheckpoint request = std::move(life->commits.front());
  life->commits.pop_front();
  Later(life, world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(50)),
        [this, life, request] {
          if (!UseDisk(life, [&] { Commit(life, request); })) return;
          life->committing = false;
          PumpCommits(life);
        });
}

void WorkerProcess::Commit(const LifePtr& life, const control::CommitCheckpoint& request) {
  const absl::Status status = session::CommitCheckpoint(
      {.files = life->files.get(), .root = world_.disk.root(), .incarnation = life->incarnation},
      request);
  if (life->dead) return;
  world_.trace.Add(name_, request.manifest.empty() ? "gives up" : "commits", " step ",
                   request.step.value(), " of ", request.key.job, " ",
                   request.key.generation.value(), ": ", status.ToString());
  Send(life, control::CheckpointCommitted{.key = request.key,
                                          .step = request.step,
                                          .error = status.ok() ? "" : status.ToString()});
  if (!status.ok() || request.manifest.empty()) return;
  life->newest[request.key.job] = request.step;
  Later(life, world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(200)),
        [this, life, request] { UseDisk(life, [&] { Retain(life, request); }); });
}

// While one checkpoint is read back, a newer one waits.
void WorkerProcess::Retain(const LifePtr& life, const control::CommitCheckpoint& request) {
  const auto newest = life->newest.find(request.key.job);
  if (newest == life->newest.end() || newest->second != request.step) return;
  if (life->retaining) {
    return Later(life, absl::Milliseconds(100),
                 [this, life, request] { UseDisk(life, [&] { Retain(life, request); }); });
  }
  life->newest.erase(newest);
  life->retaining = true;
  const absl::Status status = session::RetainCheckpoints(
      {.files = life->files.get(), .root = world_.disk.root(), .incarnation = life->incarnation},
      request);
  life->retaining = false;
  if (!status.ok()) world_.trace.Add(name_, "did not remove old checkpoints: ", status.ToString());
}

}  // namespace takt::simulation
