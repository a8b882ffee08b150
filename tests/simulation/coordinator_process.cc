// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/coordinator_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "coordinator/timeouts/timeouts.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/simulation/model_planner.h"
#include "tests/testing/emulated_spec.h"

namespace takt::simulation {

using job::Cluster;

namespace {

// How long the deciding thread needs to see an event. What comes meanwhile is decided in the same
// round, which saves most of the simulation's time.
constexpr absl::Duration kWakeUp = absl::Milliseconds(10);
// How long ReportLate keeps a report.
constexpr absl::Duration kLate = absl::Seconds(2);

}  // namespace

config::JobSpec SpecOf(const JobShape& shape, int attempt) {
  v1::JobSpec proto = testing::EmulatedSpec(shape.name, shape.pipeline, shape.steps);
  proto.mutable_parallelism()->set_data(shape.data);
  proto.set_priority(shape.priority);
  if (shape.least_pipeline > 0) {
    v1::SizeRange& range = *proto.mutable_elastic()->mutable_pipeline();
    range.set_min(shape.least_pipeline);
    range.set_max(shape.pipeline);
  }
  if (shape.least_data > 0) {
    v1::SizeRange& range = *proto.mutable_elastic()->mutable_data();
    range.set_min(shape.least_data);
    range.set_max(shape.data);
  }
  if (shape.copy_every_steps > 0) {
    // An emulated model has no state that could be copied.
    v1::ModelSpec& model = *proto.mutable_model();
    model.Clear();
    model.set_family(v1::MODEL_FAMILY_GPT2);
    model.set_layers(kLayers);
    model.set_hidden(8);
    model.set_heads(2);
    model.set_context(8);
    model.set_vocab(256);
    v1::CorpusSpec& corpus = *proto.mutable_data()->add_train();
    corpus.set_path("data");
    corpus.set_format(v1::DATA_FORMAT_BYTES);
    proto.mutable_checkpoint()->set_in_memory(absl::StrCat(shape.copy_every_steps));
  }
  if (shape.saves) {
    proto.mutable_checkpoint()->set_directory(shape.name);
    proto.mutable_checkpoint()->set_every_steps(shape.every_steps);
    proto.mutable_checkpoint()->set_keep(shape.keep);
    // A job that is submitted again begins anew over what the one before has left.
    proto.mutable_checkpoint()->set_resume(attempt == 1 ? "auto" : "none");
  }
  absl::StatusOr<config::JobSpec> spec = config::ToJobSpec(proto);
  TAKT_CHECK(spec.ok());
  return *std::move(spec);
}

class CoordinatorProcess::Session final : public job::WorkerSession {
 public:
  Session(World* world, std::shared_ptr<Stream> stream, std::string worker, std::int64_t epoch,
          OnCommand on_command)
      : world_(*world),
        stream_(std::move(stream)),
        worker_(std::move(worker)),
        epoch_(epoch),
        on_command_(std::move(on_command)) {}

  void Send(const control::Command& command) override {
    world_.oracle.Sends(worker_, command);
    stream_->Send(End::kCoordinator, [on_command = on_command_, epoch = epoch_, command] {
      on_command(epoch, command);
    });
  }
  void Close(const absl::Status& status) override { stream_->Close(End::kCoordinator, status); }

 private:
  World& world_;
  const std::shared_ptr<Stream> stream_;
  const std::string worker_;
  const std::int64_t epoch_;
  const OnCommand on_command_;
};

class CoordinatorProcess::Bulk final : public job::BulkSession {
 public:
  Bulk(World* world, std::shared_ptr<Stream> stream, BulkEnd end)
      : world_(*world), stream_(std::move(stream)), end_(std::move(end)) {}

  void Acknowledge(const control::ReportsAcknowledged& reports) override {
    world_.oracle.Acknowledges(reports.key, end_.step_of(reports.key, reports.sequence));
    stream_->Send(End::kCoordinator,
                  [acknowledged = end_.acknowledged, reports] { acknowledged(reports); });
  }
  void Close(const absl::Status& status) override { stream_->Close(End::kCoordinator, status); }

 private:
  World& world_;
  const std::shared_ptr<Stream> stream_;
  const BulkEnd end_;
};

CoordinatorProcess::CoordinatorProcess(World* world, std::function<void()> on_death)
    : world_(*world),
      on_death_(std::move(on_death)),
      random_(Mix(world->config.seed, 3)),
      targets_{.plan = [this](const job::MakePlan& wanted) { PlanFor(wanted); },
               .replan = [this](const job::Replan& wanted) { PlanAgain(wanted); }} {}

// The cluster ends before the rendezvous to which its effects refer, and Kill sees to that.
CoordinatorProcess::~CoordinatorProcess() { Kill(); }

job::ClusterOptions CoordinatorProcess::Options() {
  job::ClusterOptions options;
  options.decide.first_backoff = world_.config.first_backoff;
  options.replan = {
      .least_steps = 2, .grow_after = world_.config.grow_after, .grow_after_starts = 1};
  options.random_bytes = [this](int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) bytes += static_cast<char>(random_.Between(0, 255));
    return bytes;
  };
  return options;
}

void CoordinatorProcess::Start() {
  if (alive()) return;
  if (world_.store_full) {  // the epoch cannot be raised
    world_.trace.Add("coordinator", "does not start on a full disk");
    return on_death_();
  }
  TAKT_CHECK(world_.durable->RaiseEpoch().ok());
  absl::StatusOr<store::Snapshot> snapshot = world_.durable->Load();
  TAKT_CHECK(snapshot.ok());
  snapshot->cluster_id = world_.cluster_id;
  epoch_ = snapshot->epoch;
  world_.oracle.Begins(epoch_);
  world_.oracle.Starts(*snapshot);
  world_.trace.Add("coordinator", "starts with ", snapshot->jobs.size(), " jobs");
  ++life_;
  kill_in_ = 0;
  fails_commit_ = false;
  stopped_until_ = absl::ZeroDuration();
  waiting_.reset();
  read_only_ = absl::OkStatus();
  rendezvous_ = std::make_unique<job::Rendezvous>();
  cluster_ = std::make_unique<Cluster>(Options(), *std::move(snapshot), world_.durable.get(),
                                       world_.Now());
  last_round_ = world_.loop.now();
  RunAt(world_.loop.now());
}

void CoordinatorProcess::Kill() {
  if (!alive()) return;
  world_.trace.Add("coordinator", "dies");
  cluster_.reset();
  waiting_.reset();
  events_.clear();
  bulks_.clear();
  for (const auto& [number, stream] : streams_) {
    stream->Break(world_.random.Between(absl::ZeroDuration(), absl::Seconds(1)),
                  absl::InfiniteDuration());
  }
  streams_.clear();
  rendezvous_.reset();
}

void CoordinatorProcess::StopUntil(absl::Duration until) {
  stopped_until_ = std::max(stopped_until_, until);
}

void CoordinatorProcess::Post(Event event) {
  if (!alive()) return;
  Moment arrival = world_.Now();
  if (const absl::Duration late = stopped_until_ - arrival.steady; late > absl::ZeroDuration())
    arrival = {arrival.wall + late, arrival.steady + late};
  events_.push_back({std::move(event), arrival});
  if (const absl::Duration soon = world_.loop.now() + kWakeUp; soon < next_round_) RunAt(soon);
}

void CoordinatorProcess::RunAt(absl::Duration when) {
  next_round_ = when;
  world_.loop.At(when, [this, when, life = life_] {
    if (!alive() || life != life_ || when != next_round_) return;
    if (world_.loop.now() < stopped_until_) return RunAt(stopped_until_);
    Round();
  });
}

void CoordinatorProcess::Round() {
  const Moment before = world_.Now();
  const absl::Duration pause = before.steady - std::exchange(last_round_, before.steady);
  if (pause >= membership::MembershipOptions().lease / 2) cluster_->ResumeAfterStall(pause, before);
  for (const TimedEvent& event : std::exchange(events_, {})) event.event(*cluster_, event.arrival);
  rendezvous_->Expire(before.steady);
  if (!waiting_) cluster_->Tick(before);
  if (!Flush(cluster_->TakeOutbox(), before)) {
    Kill();
    return on_death_();
  }
  const bool batch = cluster_->HasWaitingBatch();
  const absl::Duration tick =
      batch ? std::min(timeouts::kBatchInterval, world_.config.tick) : world_.config.tick;
  RunAt(world_.loop.now() + (events_.empty() ? tick : kWakeUp));
}

// As job::Coordinator::Flush does.
bool CoordinatorProcess::Flush(job::Outbox outbox, Moment now) {
  if (waiting_) {
    const bool deletes = !outbox.changes.deleted_jobs.empty();
    waiting_->Append(std::move(outbox));
    if (!deletes && now.steady - tried_at_ < timeouts::kRetryFullDisk) {
      job::AnswerWithout(waiting_->effects, read_only_);
      return true;
    }
    outbox = *std::exchange(waiting_, std::nullopt);
  }
  // A full disk has a reserve for what deletes jobs.
  if (!world_.store_full || outbox.changes.empty() || !outbox.changes.deleted_jobs.empty())
    return Store(std::move(outbox), now);
  BeginReadOnly(now);
  job::AnswerWithout(outbox.effects, read_only_);
  waiting_ = std::move(outbox);
  return true;
}

bool CoordinatorProcess::Store(job::Outbox outbox, Moment now) {
  const bool acts_first = world_.config.mutation == Mutation::kEffectsBeforeCommit;
  if (acts_first && !CarryOut(outbox)) return false;
  if (!outbox.changes.empty()) {
    if (!PassBoundary()) return false;
    if (std::exchange(fails_commit_, false)) {
      world_.trace.Add("coordinator", "cannot store");
      return false;
    }
    const absl::Status stored = world_.durable->Commit(outbox.changes);
    TAKT_CHECK(stored.ok());
    world_.oracle.Commits(outbox.changes);
    if (!PassBoundary()) return false;
  }
  EndReadOnly(now);
  return acts_first || CarryOut(outbox);
}

void CoordinatorProcess::BeginReadOnly(Moment now) {
  tried_at_ = now.steady;
  if (!read_only_.ok()) return;
  world_.trace.Add("coordinator", "is read-only");
  read_only_since_ = now.steady;
  read_only_ = absl::ResourceExhaustedError("the coordinator is read-only");
  cluster_->SetReadOnly(read_only_);
}

void CoordinatorProcess::EndReadOnly(Moment now) {
  if (read_only_.ok()) return;
  world_.trace.Add("coordinator", "is not read-only any more");
  read_only_ = absl::OkStatus();
  cluster_->SetReadOnly(read_only_);
  cluster_->ResumeAfterStall(now.steady - read_only_since_, now);
}

bool CoordinatorProcess::CarryOut(const job::Outbox& outbox) {
  job::EffectTargets targets = targets_;
  targets.rendezvous = rendezvous_.get();
  for (const job::Effect& effect : outbox.effects) {
    job::CarryOut(effect, targets);
    if (!PassBoundary()) return false;
  }
  return true;
}

bool CoordinatorProcess::PassBoundary() {
  ++boundaries_;
  const bool asked = kill_in_ > 0 && --kill_in_ == 0;
  return !asked && boundaries_ != world_.config.kill_coordinator_at;
}

void CoordinatorProcess::PlanFor(const job::MakePlan& wanted) {
  PostLater([wanted](Cluster& cluster, Moment now) {
    cluster.Planned(wanted.job_id, wanted.generation, PlanOf(wanted.spec, wanted.options), now);
  });
}

void CoordinatorProcess::PlanAgain(const job::Replan& wanted) {
  PostLater([wanted](Cluster& cluster, Moment now) {
    cluster.Replanned(wanted.job_id, wanted.generation,
                      job::ReplanOffer{.present_seconds = wanted.present_seconds,
                                       .plan = PlanOf(wanted.spec, wanted.options)},
                      now);
  });
}

void CoordinatorProcess::PostLater(Event event) {
  const absl::Duration time = world_.random.Between(absl::Milliseconds(5), absl::Milliseconds(500));
  world_.loop.After(time, [this, life = life_, event = std::move(event)] {
    if (life == life_) Post(event);
  });
}

void CoordinatorProcess::Attach(const std::shared_ptr<Stream>& stream, const control::Hello& hello,
                                OnCommand on_command) {
  if (!alive()) return stream->Break(absl::ZeroDuration(), absl::InfiniteDuration());
  const std::int64_t number = ++last_stream_;
  stream->set_number(number);
  streams_[number] = stream;
  const job::SessionId id(number);
  stream->set_on_end(End::kCoordinator, [this, number, id](const absl::Status&) {
    streams_.erase(number);
    Post([id](Cluster& cluster, Moment now) { cluster.Detach(id, "its stream ended", now); });
  });
  auto session =
      std::make_shared<Session>(&world_, stream, hello.worker, epoch_, std::move(on_command));
  Post([hello, id, session](Cluster& cluster, Moment now) {
    cluster.Attach(hello, id, session, now);
  });
}

void CoordinatorProcess::Receive(const Stream& stream, const control::WorkerMessage& message) {
  const job::SessionId id(stream.number());
  if (!streams_.contains(id.value())) return;
  std::visit(Overloaded{[&](const control::Heartbeat& heartbeat) {
                          Post([id, heartbeat](Cluster& cluster, Moment now) {
                            cluster.Heartbeat(id, heartbeat, now);
                          });
                        },
                        [&](const control::JobUpdate& update) {
                          Post([id, update](Cluster& cluster, Moment now) {
                            cluster.Update(id, update, now);
                          });
                        },
                        [&](const control::Leaving& leaving) {
                          Post([id, reason = leaving.reason](Cluster& cluster, Moment now) {
                            cluster.Leave(id, reason, now);
                          });
                        },
                        [&](const control::CheckpointCommitted& answer) {
                          Post([id, answer](Cluster& cluster, Moment now) {
                            cluster.Committed(id, answer, now);
                          });
                        },
                        [&](const control::RankDescription& description) {
                          Post([id, description](Cluster& cluster, Moment now) {
                            cluster.Described(id, description, now);
                          });
                        },
                        [&](const control::CommandsRefused& refused) {
                          Post([id, refused](Cluster& cluster, Moment now) {
                            cluster.Refused(id, refused, now);
                          });
                        },
                        [](const auto&) {}},
             message);
}

void CoordinatorProcess::AttachBulk(const std::shared_ptr<Stream>& stream,
                                    const control::BulkHello& hello, BulkEnd end) {
  if (!alive()) return stream->Break(absl::ZeroDuration(), absl::InfiniteDuration());
  const std::int64_t number = ++last_stream_;
  stream->set_number(number);
  streams_[number] = stream;
  bulks_[number] = {stream, std::make_shared<Bulk>(&world_, stream, std::move(end)), hello};
  stream->set_on_end(End::kCoordinator, [this, number](const absl::Status&) {
    streams_.erase(number);
    bulks_.erase(number);
  });
  Post([hello, stream](Cluster& cluster, Moment) {
    const absl::Status attached = cluster.CheckAttached(hello.worker, hello.incarnation);
    if (!attached.ok()) stream->Close(End::kCoordinator, attached);
  });
}

void CoordinatorProcess::ReceiveBulk(const Stream& stream, control::BulkMessage message) {
  const auto found = bulks_.find(stream.number());
  if (found == bulks_.end()) return;
  const auto& [of, session, hello] = found->second;
  if (!read_only_.ok()) {
    const std::shared_ptr<Stream> cut = of;
    streams_.erase(cut->number());
    bulks_.erase(found);
    return cut->Close(End::kCoordinator, read_only_);
  }
  if (const auto* const step = std::get_if<control::RankStepReport>(&message)) {
    if (world_.config.mutation == Mutation::kStaleReports) return ReportLate(*step, session, hello);
    Post([report = *step, session = session, hello = hello](Cluster& cluster, Moment) {
      cluster.Report(hello.worker, hello.incarnation, report, session);
    });
  } else if (const auto* const part = std::get_if<control::CheckpointReport>(&message)) {
    Post([report = *part, session = session, hello = hello](Cluster& cluster, Moment) {
      cluster.ReportCheckpoint(hello.worker, hello.incarnation, report, session);
    });
  }
}

// Breaks the rule that a report counts for its own generation only.
void CoordinatorProcess::ReportLate(const control::RankStepReport& report,
                                    const std::shared_ptr<Bulk>& session,
                                    const control::BulkHello& hello) {
  world_.loop.After(kLate, [this, life = life_, report, session, hello] {
    if (life != life_) return;
    control::RankStepReport changed = report;
    const DurableJob* const job = world_.oracle.Find(report.key.job);
    if (job != nullptr) changed.key.generation = job->generation;
    Post([changed, session, hello](Cluster& cluster, Moment) {
      cluster.Report(hello.worker, hello.incarnation, changed, session);
    });
  });
}

void CoordinatorProcess::SetKey(const control::JobKey& key, const std::string& name,
                                const std::string& value,
                                const std::function<void(absl::Status)>& done) {
  if (!alive()) return done(absl::UnavailableError("nobody listens"));
  done(rendezvous_->Set(key.job, key.generation, name, value));
}

void CoordinatorProcess::WaitKeys(
    const control::JobKey& key, const std::vector<std::string>& names,
    const std::function<void(absl::StatusOr<job::Rendezvous::Values>)>& done) {
  if (!alive()) return done(absl::UnavailableError("nobody listens"));
  rendezvous_->Wait(key.job, key.generation, names, world_.loop.now() + absl::Hours(1), done);
}

job::Reply<store::JobRecord> CoordinatorProcess::JobReply(
    const Request& request, std::function<void(absl::Status)> answer) {
  return [this, request, answer = std::move(answer)](absl::StatusOr<store::JobRecord> job) {
    world_.answers.Answered(request, job.ok() ? absl::StatusOr<std::string>(job->id)
                                              : absl::StatusOr<std::string>(job.status()));
    answer(job.status());
  };
}

void CoordinatorProcess::Handle(const Request& request, std::function<void(absl::Status)> answer) {
  if (!alive()) return answer(absl::UnavailableError("nobody listens"));
  const auto tell = [this, request, answer](const absl::Status& status) {
    world_.answers.Answered(request, status.ok() ? absl::StatusOr<std::string>(std::string())
                                                 : absl::StatusOr<std::string>(status));
    answer(status);
  };
  const auto tell_worker = [tell](absl::StatusOr<membership::Worker> worker) {
    tell(worker.status());
  };
  Post([this, request, tell, tell_worker, reply = JobReply(request, answer)](Cluster& cluster,
                                                                             Moment now) {
    const auto& [id, method, target, attempt] = request;
    switch (method) {
      case Method::kSubmit: {
        const auto shape = std::ranges::find(world_.config.jobs, target, &JobShape::name);
        config::JobSpec spec = SpecOf(*shape, attempt);
        std::string text = config::ToProto(spec).SerializeAsString();
        return cluster.Submit(
            {.request_id = id, .spec = std::move(text), .parsed = std::move(spec)}, reply, now);
      }
      case Method::kCancel:
        return cluster.Cancel(id, target, reply, now);
      case Method::kPause:
        return cluster.Pause(id, target, reply, now);
      case Method::kResume:
        return cluster.Resume(id, target, reply, now);
      case Method::kDelete:
        return cluster.Delete(id, target,
                              [tell](absl::StatusOr<bool> done) { tell(done.status()); });
      case Method::kAdopt:
        return cluster.Adopt(id, target, reply, now);
      case Method::kDrain:
      case Method::kUndrain:
        return cluster.SetDrained(id, target, method == Method::kDrain, tell_worker, now);
    }
  });
}

}  // namespace takt::simulation
