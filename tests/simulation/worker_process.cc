// SPDX-License-Identifier: Apache-2.0
// This file has a WorkerProcess's life and its streams.
#include "tests/simulation/worker_process.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "tests/simulation/worker_life.h"

namespace takt::simulation {
namespace {

constexpr absl::Duration kBeat = absl::Seconds(1);
// As in worker_rpc::ReconnectingStream.
constexpr absl::Duration kFirstRedial = absl::Milliseconds(100);
constexpr absl::Duration kMostRedial = absl::Seconds(2);
constexpr absl::Duration kRefusedRedial = absl::Seconds(10);
// Both ends of a connection that breaks know it after this time.
constexpr absl::Duration kBreakIsSeen = absl::Milliseconds(200);
// So many processes are paused at once at most, one inside the other.
constexpr int kMostPauses = 4;

}  // namespace

WorkerProcess::WorkerProcess(World* world, CoordinatorProcess* coordinator, DataPlane* plane,
                             std::string name, std::function<void()> on_exit)
    : world_(*world),
      coordinator_(*coordinator),
      plane_(*plane),
      name_(std::move(name)),
      on_exit_(std::move(on_exit)) {
  path_.most_delay = world_.config.most_delay;
}

// A stream and the life that uses it refer to each other.
WorkerProcess::~WorkerProcess() {
  if (alive()) life_->control_stream = life_->bulk_stream = nullptr;
}

void WorkerProcess::Start() {
  if (alive()) return;
  life_ = std::make_shared<Life>();
  life_->incarnation = absl::StrCat(name_, "-", ++lives_);
  life_->files =
      world_.disk.Open([this, life = std::weak_ptr<Life>(life_)] { BeforeDiskCall(life); });
  stopped_until_ = absl::ZeroDuration();
  world_.trace.Add(name_, "starts, life ", lives_);
  Dial(life_);
  Beat(life_);
}

void WorkerProcess::Kill(bool told) {
  if (!alive()) return;
  world_.trace.Add(name_, told ? "is killed" : "vanishes");
  const LifePtr life = std::exchange(life_, nullptr);
  life->dead = true;
  const absl::Duration learns =
      told ? world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(100))
           : absl::InfiniteDuration();
  for (const std::shared_ptr<Stream>& stream :
       {std::exchange(life->control_stream, nullptr), std::exchange(life->bulk_stream, nullptr)}) {
    if (stream != nullptr) stream->Break(absl::InfiniteDuration(), learns);
  }
  if (life->rank != nullptr) life->rank->Die(told);
}

void WorkerProcess::StopUntil(absl::Duration until) {
  stopped_until_ = std::max(stopped_until_, until);
}

void WorkerProcess::SlowUntil(absl::Duration until, double factor) {
  slow_until_ = until;
  slowness_ = factor;
}

void WorkerProcess::Leave() {
  if (!alive()) return;
  const LifePtr life = life_;
  Now(life, [this, life] {
    world_.trace.Add(name_, "is asked to leave");
    Apply(life, life->held.Leave(StatusOf(*life), world_.loop.now()));
  });
}

void WorkerProcess::BreakStreams() {
  if (!alive()) return;
  for (const std::shared_ptr<Stream>& stream : {life_->control_stream, life_->bulk_stream}) {
    if (stream == nullptr) continue;
    // Compilers evaluate arguments in different orders.
    const absl::Duration worker = world_.random.Between(absl::ZeroDuration(), kBreakIsSeen);
    const absl::Duration coordinator = world_.random.Between(absl::ZeroDuration(), kBreakIsSeen);
    stream->Break(worker, coordinator);
  }
}

void WorkerProcess::Later(const LifePtr& life, absl::Duration delay, std::function<void()> action) {
  world_.loop.After(delay, [this, life, action = std::move(action)] { Now(life, action); });
}

void WorkerProcess::Now(const LifePtr& life, const std::function<void()>& action) {
  if (life->dead) return;
  if (world_.loop.now() >= stopped_until_) return action();
  world_.loop.At(stopped_until_, [this, life, action] { Now(life, action); });
}

bool WorkerProcess::UseDisk(const LifePtr& life, const std::function<void()>& action) {
  try {
    action();
  } catch (const ProcessKilled&) {
    return false;
  }
  return !life->dead;
}

// Another process may be in the middle of its own call meanwhile, and this one may be killed.
void WorkerProcess::BeforeDiskCall(const std::weak_ptr<Life>& weak_life) {
  const LifePtr life = weak_life.lock();
  if (life == nullptr || life->dead) throw ProcessKilled();
  if (world_.loop.stopped()) return;
  std::optional<CallFault>& fault = world_.call_fault;
  bool kills = false, pauses = false;
  if (fault && --fault->calls <= 0) {
    kills = fault->kills;
    pauses = !fault->kills;
    fault.reset();
  }
  if (kills) {
    Kill(/*told=*/true);
    on_exit_();
    throw ProcessKilled();
  }
  if (!pauses || world_.loop.depth() > kMostPauses) return;
  const absl::Duration until =
      world_.loop.now() + world_.random.Between(absl::Milliseconds(100), absl::Seconds(20));
  const bool whole = world_.random.Chance(0.5);
  world_.trace.Add(name_, whole ? "is paused" : "waits for the disk");
  if (whole) StopUntil(until);
  world_.loop.RunUntil(until);
  if (life->dead) throw ProcessKilled();
  world_.trace.Add(name_, "goes on");
}

control::Hello WorkerProcess::HelloOf(const Life& life) const {
  control::Hello hello{.worker = name_,
                       .incarnation = life.incarnation,
                       .protocol_version = kProtocolVersion,
                       .program_version = kTaktVersion,
                       .host = absl::StrCat("host-", name_),
                       .cores = 8};
  if (life.held.state() != session::RankLifecycle::State::kIdle) {
    hello.running = {.key = life.held.key(),
                     .rank = life.held.rank(),
                     .last_step = StatusOf(life).last_step,
                     .cluster_id = life.fence.cluster_id(),
                     .describes = true};
  }
  return hello;
}

void WorkerProcess::Dial(const LifePtr& life) {
  if (!path_.IsFree(world_.loop.now())) return Redial(life, absl::Seconds(1));
  life->welcomed = life->heard = false;
  const auto stream = std::make_shared<Stream>(&world_.loop, &world_.random, &path_);
  life->control_stream = stream;
  stream->set_on_end(End::kWorker, [this, life, stream = stream.get()](const absl::Status& status) {
    Now(life, [this, life, stream, status] {
      if (life->control_stream.get() == stream) ControlEnded(life, status);
    });
  });
  const auto on_command = [this, life, stream = stream.get()](std::int64_t epoch,
                                                              const control::Command& command) {
    Now(life, [this, life, stream, epoch, command] {
      if (life->control_stream.get() == stream) OnCommand(life, epoch, command);
    });
  };
  stream->Send(End::kWorker, [this, stream = stream.get(), hello = HelloOf(*life), on_command] {
    coordinator_.Attach(stream->shared_from_this(), hello, on_command);
  });
}

void WorkerProcess::Redial(const LifePtr& life, absl::Duration least) {
  life->control_stream = nullptr;
  life->failures = life->heard ? 1 : life->failures + 1;
  const double doublings = static_cast<double>(1 << std::clamp(life->failures - 1, 0, 5));
  const absl::Duration whole = std::min(kMostRedial, kFirstRedial * doublings);
  const absl::Duration wait = std::max(least, world_.random.Between(whole / 2, whole));
  Later(life, wait, [this, life] { Dial(life); });
}

void WorkerProcess::ControlEnded(const LifePtr& life, const absl::Status& status) {
  life->welcomed = false;
  Apply(life, life->held.Detached(StatusOf(*life), world_.loop.now()));
  if (life->dead || world_.config.mutation == Mutation::kForgottenCoordinator) return;
  Redial(life, absl::IsFailedPrecondition(status) ? kRefusedRedial : absl::ZeroDuration());
}

bool WorkerProcess::Send(const LifePtr& life, const control::WorkerMessage& message) {
  if (!life->welcomed || life->control_stream == nullptr) return false;
  Stream* const stream = life->control_stream.get();
  stream->Send(End::kWorker, [this, stream, message] { coordinator_.Receive(*stream, message); });
  return true;
}

// Looks at the time, too, as the agent does. All workers do it at whole seconds, so that one round
// of the coordinator hears them all.
void WorkerProcess::Beat(const LifePtr& life) {
  SendHeartbeat(life);
  const absl::Duration now = world_.loop.now();
  if (life->held.LeaveIsDue(now)) Apply(life, life->held.Leave(StatusOf(*life), now));
  if (life->dead) return;
  Apply(life, life->held.Tick(now));
  if (life->dead) return;
  Later(life, absl::Floor(now, kBeat) + kBeat - now, [this, life] { Beat(life); });
}

void WorkerProcess::SendHeartbeat(const LifePtr& life) {
  control::Heartbeat heartbeat;
  if (life->held.state() != session::RankLifecycle::State::kIdle) {
    heartbeat.key = life->held.key();
    heartbeat.status = StatusOf(*life);
  }
  Send(life, heartbeat);
}

void WorkerProcess::DialBulk(const LifePtr& life) {
  // Reports are for the coordinator that the rank belongs to.
  if (!life->welcomed || !life->obeys || !path_.IsFree(world_.loop.now()))
    return Later(life, kFirstRedial, [this, life] { DialBulk(life); });
  if (world_.config.mutation != Mutation::kForgottenReports) life->outbox.Rewind();
  const auto stream = std::make_shared<Stream>(&world_.loop, &world_.random, &path_);
  life->bulk_stream = stream;
  stream->set_on_end(End::kWorker, [this, life, stream = stream.get()](const absl::Status&) {
    Now(life, [this, life, stream] {
      if (life->bulk_stream.get() != stream) return;
      life->bulk_stream = nullptr;
      Later(life, kFirstRedial, [this, life] { DialBulk(life); });
    });
  });
  const BulkEnd end{
      .acknowledged =
          [this, life](const control::ReportsAcknowledged& reports) {
            Now(life, [this, life, reports] { Acknowledged(life, reports); });
          },
      .step_of = [life](const control::JobKey& key,
                        std::int64_t sequence) { return life->StepOf(key, sequence); }};
  const control::BulkHello hello{name_, life->incarnation};
  stream->Send(End::kWorker, [this, stream = stream.get(), hello, end] {
    coordinator_.AttachBulk(stream->shared_from_this(), hello, end);
  });
  PumpBulk(life);
}

// Next blocks when nothing is left to send. Reports come before lines, so a line marks the end.
void WorkerProcess::PumpBulk(const LifePtr& life) {
  if (life->bulk_stream == nullptr || !life->has_begun) return;
  life->outbox.AddLog(LogLevel::kInfo, "the end", 0);
  while (std::optional<control::BulkMessage> message = life->outbox.Next()) {
    if (std::holds_alternative<control::LogLine>(*message)) return;
    life->bulk_stream->Send(
        End::kWorker, [this, stream = life->bulk_stream.get(), message = *std::move(message)] {
          coordinator_.ReceiveBulk(*stream, message);
        });
  }
}

}  // namespace takt::simulation
