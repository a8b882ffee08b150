// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/cluster_harness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/config/job_spec_serde.h"
#include "coordinator/store/memory_store.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::job {
namespace {

// Where the job says `auto`, there are two replicas and microbatches of four sequences.
plan::Plan PlanFor(const MakePlan& request, double predicted_step_seconds) {
  const config::Parallelism& asked = request.spec.parallelism;
  plan::Plan plan;
  plan.predicted_step_seconds = predicted_step_seconds;
  plan.microbatch = request.spec.microbatch_auto ? 4 : request.spec.microbatch;
  plan.mesh.dp_size = asked.data_auto ? 2 : asked.data.value_or(1);
  plan.mesh.pp_size =
      asked.pipeline.value_or(std::max(1, request.options.max_workers / plan.mesh.dp_size));
  plan.schedule.name = "1f1b";
  plan.programs.resize(plan.mesh.pp_size);
  for (int p = 0; p < plan.mesh.pp_size; ++p) {
    plan.partition.push_back({StageId(p), PpRank(p), LayerId(p), LayerId(p + 1)});
  }
  return plan;
}

}  // namespace

ClusterTest::ClusterTest() : store_(store::NewMemoryStore()) { Restart(); }

void ClusterTest::Restart() {
  workers_.clear();
  plans_.clear();
  replans_.clear();
  shown_.clear();
  cluster_.reset();
  rendezvous_ = std::make_unique<Rendezvous>();
  ClusterOptions options;
  options.random_bytes = [this](int count) {
    return std::string(count, static_cast<char>(++last_random_));
  };
  options.read_profile = [this] { return profile_; };
  options.quotas = quotas_;
  options.retention = retention_;
  options.replan = replan_;
  options.abandon_held_after = abandon_held_after_;
  cluster_ =
      std::make_unique<Cluster>(options, store_->Load().value(), store_.get(), Moment::Of(clock_));
  Settle();
}

void ClusterTest::Settle() {
  while (true) {
    const Moment now = Moment::Of(clock_);
    rendezvous_->Expire(now.steady);
    cluster_->Tick(now);
    if (!hold_plans_) {
      for (const MakePlan& request : std::exchange(plans_, {})) {
        cluster_->Planned(
            request.job_id, request.generation,
            plan_error_.ok() ? absl::StatusOr<plan::Plan>(PlanFor(request, predicted_step_seconds_))
                             : plan_error_,
            now);
      }
    }
    const Outbox outbox = cluster_->TakeOutbox();
    if (outbox.empty()) return;
    ASSERT_TRUE(store_->Commit(outbox.changes).ok());
    for (const std::string& id : outbox.removed) {
      std::erase_if(shown_, [&](const auto& entry) { return entry.second.id == id; });
    }
    for (const JobView& job : outbox.published) shown_[job->name] = *job;
    const EffectTargets targets{
        .rendezvous = rendezvous_.get(),
        .plan = [this](const MakePlan& wanted) { plans_.push_back(wanted); },
        .replan = [this](const Replan& wanted) { replans_.push_back(wanted); }};
    for (const Effect& effect : outbox.effects) CarryOut(effect, targets);
  }
}

void ClusterTest::Advance(absl::Duration by) {
  clock_.Advance(by);
  Settle();
}

FakeWorker& ClusterTest::Attach(const std::string& name, const std::string& incarnation,
                                std::optional<membership::Hold> running,
                                std::optional<Device> device) {
  control::Hello hello{.worker = name, .incarnation = incarnation, .device = std::move(device)};
  if (running) hello.running = {.key = running->key, .rank = running->rank};
  return AttachAs(std::move(hello));
}

FakeWorker& ClusterTest::AttachHolding(const std::string& name,
                                       const control::RunningJob& running) {
  return AttachAs({.worker = name, .incarnation = "a", .running = running});
}

FakeWorker& ClusterTest::AttachOld(const std::string& name, int protocol) {
  return AttachAs({.worker = name, .incarnation = "a", .protocol_version = protocol});
}

FakeWorker& ClusterTest::AttachAs(control::Hello hello) {
  FakeWorker& worker = workers_[hello.worker] = {
      hello.worker, hello.incarnation, SessionId(++last_session_), std::make_shared<FakeSession>()};
  if (hello.protocol_version == 0) hello.protocol_version = kProtocolVersion;
  hello.host = host_;
  hello.cores = 8;
  cluster_->Attach(hello, worker.id, worker.session, Moment::Of(clock_));
  Settle();
  return worker;
}

void ClusterTest::AttachWorkers(int count) {
  for (int i = 0; i < count; ++i) Attach(absl::StrCat("w", i));
}

void ClusterTest::Detach(const std::string& name) {
  cluster_->Detach(workers_.at(name).id, "its stream ended", Moment::Of(clock_));
  Settle();
}

void ClusterTest::Lose(const std::string& name) {
  Detach(name);
  std::vector<std::string> others;
  for (const auto& [other, worker] : workers_) {
    if (other != name) others.push_back(other);
  }
  AdvanceHearing(others, timeouts::kRedial);
}

void ClusterTest::AdvanceHearing(const std::vector<std::string>& names, absl::Duration by) {
  const absl::Duration end = absl::Nanoseconds(clock_.SteadyNanos()) + by;
  while (absl::Nanoseconds(clock_.SteadyNanos()) < end) {
    for (const std::string& name : names)
      cluster_->Heartbeat(workers_.at(name).id, {}, Moment::Of(clock_));
    Advance(std::min(timeouts::kHeartbeat, end - absl::Nanoseconds(clock_.SteadyNanos())));
  }
}

void ClusterTest::Say(const std::string& worker, const control::JobKey& key, int rank,
                      control::Phase phase, const std::string& error,
                      const std::string& waiting_for) {
  cluster_->Update(
      workers_.at(worker).id,
      {.key = key,
       .rank = Rank(rank),
       .phase = phase,
       .failure = {.error = error},
       .status = {.last_step = StepId(1), .instruction = "1F0", .waiting_for = waiting_for}},
      Moment::Of(clock_));
  Settle();
}

void ClusterTest::Heartbeat(const std::string& worker, const control::JobKey& key, int rank,
                            std::int64_t step, const std::string& instruction) {
  cluster_->Heartbeat(workers_.at(worker).id,
                      {.key = key,
                       .status = control::RankStatus{.rank = Rank(rank),
                                                     .last_step = StepId(step),
                                                     .instruction = instruction}},
                      Moment::Of(clock_));
  Settle();
}

void ClusterTest::Report(const std::string& worker, const control::JobKey& key, int rank,
                         std::int64_t step) {
  const FakeWorker& from = workers_.at(worker);
  cluster_->Report(from.name, from.incarnation,
                   {.key = key,
                    .rank = Rank(rank),
                    .sequence = NextSequence(worker, key),
                    .step = StepId(step),
                    .step_seconds = 1,
                    .loss = 4.0 - step},
                   from.session);
  Advance(absl::Milliseconds(50));  // its batch
}

std::int64_t ClusterTest::NextSequence(const std::string& worker, const control::JobKey& key) {
  return ++sequences_[absl::StrCat(worker, " ", key.job, " ", key.generation.value())];
}

void ClusterTest::ReportPart(const std::string& worker, const control::JobKey& key, int rank,
                             std::int64_t step, const std::string& error) {
  const FakeWorker& from = workers_.at(worker);
  cluster_->ReportCheckpoint(from.name, from.incarnation,
                             {.key = key,
                              .rank = Rank(rank),
                              .sequence = NextSequence(worker, key),
                              .step = StepId(step),
                              .files = {{.name = absl::StrCat("model-", rank),
                                         .bytes = 8,
                                         .xxh3_128 = std::string(32, 'a')}},
                              .error = error},
                             from.session);
  Advance(absl::Milliseconds(50));  // its batch
}

void ClusterTest::Answer(const std::string& worker, const control::JobKey& key, std::int64_t step,
                         const std::string& error) {
  cluster_->Committed(workers_.at(worker).id, {.key = key, .step = StepId(step), .error = error},
                      Moment::Of(clock_));
  Settle();
}

void ClusterTest::Leave(const std::string& worker) {
  cluster_->Leave(workers_.at(worker).id, "SIGTERM", Moment::Of(clock_));
  Settle();
}

config::JobSpec ClusterTest::SavingSpec(const std::string& name, int pipeline, std::int64_t steps) {
  config::JobSpec spec = Spec(name, pipeline, steps);
  spec.checkpoint = {.directory = absl::StrCat("/checkpoints/", name), .every_steps = 10};
  return spec;
}

config::JobSpec ClusterTest::OpenSpec(const std::string& name) {
  config::JobSpec spec = SavingSpec(name, /*pipeline=*/0);
  spec.parallelism.data.reset();
  spec.parallelism.data_auto = spec.microbatch_auto = true;
  return spec;
}

config::JobSpec ClusterTest::CopyingSpec(config::JobSpec spec) {
  spec.model = {.layers = 8,
                .hidden = 8,
                .heads = 2,
                .kv_heads = 2,
                .inner = 32,
                .context = 8,
                .positions = 8,
                .vocab = 16};
  spec.train = {{.path = "data.txt", .format = config::DataFormat::kBytes}};
  spec.copy_every_steps = 1;
  return spec;
}

config::JobSpec ClusterTest::Spec(const std::string& name, int pipeline, std::int64_t steps) {
  v1::JobSpec proto;
  proto.set_name(name);
  proto.mutable_model()->set_family(v1::MODEL_FAMILY_EMULATED);
  proto.mutable_model()->set_layers(8);
  proto.mutable_model()->set_forward_ms(1);
  proto.mutable_model()->set_input_grad_ms(1);
  proto.mutable_model()->set_weight_grad_ms(1);
  proto.mutable_model()->set_activation_bytes(1024);
  proto.mutable_batch()->set_global(8);
  proto.mutable_batch()->set_microbatch(1);
  proto.set_steps(steps);
  if (pipeline > 0) proto.mutable_parallelism()->set_pipeline(pipeline);
  proto.mutable_parallelism()->set_data(1);
  return config::ToJobSpec(proto).value();
}

absl::StatusOr<store::JobRecord> ClusterTest::Submit(const config::JobSpec& spec,
                                                     const std::string& request_id) {
  absl::StatusOr<store::JobRecord> answer = absl::UnknownError("no answer");
  cluster_->Submit(
      {.request_id = request_id,
       .spec = config::ToProto(spec).SerializeAsString(),
       .parsed = spec,
       .owner = owner_,
       .predicted_step_seconds = predicted_step_seconds_},
      [&](absl::StatusOr<store::JobRecord> job) { answer = std::move(job); }, Moment::Of(clock_));
  Settle();
  return answer;
}

absl::StatusOr<store::JobRecord> ClusterTest::Cancel(const std::string& name,
                                                     const std::string& request_id) {
  absl::StatusOr<store::JobRecord> answer = absl::UnknownError("no answer");
  cluster_->Cancel(
      request_id, name, [&](absl::StatusOr<store::JobRecord> job) { answer = std::move(job); },
      Moment::Of(clock_));
  Settle();
  return answer;
}

absl::StatusOr<store::JobRecord> ClusterTest::Pause(const std::string& name,
                                                    const std::string& request_id) {
  absl::StatusOr<store::JobRecord> answer = absl::UnknownError("no answer");
  cluster_->Pause(
      request_id, name, [&](absl::StatusOr<store::JobRecord> job) { answer = std::move(job); },
      Moment::Of(clock_));
  Settle();
  return answer;
}

absl::StatusOr<store::JobRecord> ClusterTest::Resume(const std::string& name,
                                                     const std::string& request_id) {
  absl::StatusOr<store::JobRecord> answer = absl::UnknownError("no answer");
  cluster_->Resume(
      request_id, name, [&](absl::StatusOr<store::JobRecord> job) { answer = std::move(job); },
      Moment::Of(clock_));
  Settle();
  return answer;
}

absl::Status ClusterTest::Delete(const std::string& name, const std::string& request_id) {
  absl::Status answer = absl::UnknownError("no answer");
  cluster_->Delete(request_id, name,
                   [&](absl::StatusOr<bool> deleted) { answer = deleted.status(); });
  Settle();
  return answer;
}

absl::StatusOr<store::JobRecord> ClusterTest::Adopt(const std::string& name,
                                                    const std::string& request_id) {
  absl::StatusOr<store::JobRecord> answer = absl::UnknownError("no answer");
  cluster_->Adopt(
      request_id, name, [&](absl::StatusOr<store::JobRecord> job) { answer = std::move(job); },
      Moment::Of(clock_));
  Settle();
  return answer;
}

absl::Status ClusterTest::Abandon(const std::string& name, const std::string& request_id) {
  absl::Status answer = absl::UnknownError("no answer");
  cluster_->Abandon(
      request_id, name, [&](absl::StatusOr<bool> abandoned) { answer = abandoned.status(); },
      Moment::Of(clock_));
  Settle();
  return answer;
}

absl::StatusOr<membership::Worker> ClusterTest::SetDrained(const std::string& name, bool drained,
                                                           const std::string& request_id) {
  absl::StatusOr<membership::Worker> answer = absl::UnknownError("no answer");
  cluster_->SetDrained(
      request_id, name, drained,
      [&](absl::StatusOr<membership::Worker> worker) { answer = std::move(worker); },
      Moment::Of(clock_));
  Settle();
  return answer;
}

control::JobKey ClusterTest::RunJob(const std::string& name, int pipeline, std::int64_t steps) {
  return RunJob(Spec(name, pipeline, steps));
}

control::JobKey ClusterTest::RunJob(const config::JobSpec& spec) {
  EXPECT_TRUE(Submit(spec).ok());
  return AdmitAll(spec.name);
}

control::JobKey ClusterTest::AdmitAll(const std::string& name, std::int64_t resumed_step) {
  const control::JobKey key{name, Job(name).generation};
  const std::vector<control::BoundRank> ranks = Job(name).ranks;
  for (const control::BoundRank& bound : ranks) {
    cluster_->Update(workers_.at(bound.worker).id,
                     {.key = key, .rank = bound.rank, .resumed = {.step = StepId(resumed_step)}},
                     Moment::Of(clock_));
    Settle();
  }
  EXPECT_EQ(Job(name).state, store::JobState::kRunning);
  return key;
}

void ClusterTest::TrainTo(const control::JobKey& key, std::int64_t step) {
  const store::JobRecord job = Job(key.job);
  const StepId last = job.last_step ? job.last_step->step : StepId(0);
  for (std::int64_t s = last.value() + 1; s <= step; ++s) {
    for (const control::BoundRank& bound : job.ranks)
      Report(bound.worker, key, bound.rank.value(), s);
  }
}

void ClusterTest::WriteAt(const control::JobKey& key, std::int64_t step) {
  TrainTo(key, step);
  const std::vector<control::BoundRank> ranks = Job(key.job).ranks;
  for (const control::BoundRank& bound : ranks)
    ReportPart(bound.worker, key, bound.rank.value(), step);
}

void ClusterTest::SaveAt(const control::JobKey& key, std::int64_t step) {
  const std::vector<control::BoundRank> ranks = Job(key.job).ranks;
  for (const control::BoundRank& bound : ranks)
    ReportPart(bound.worker, key, bound.rank.value(), step);
  const control::CommitCheckpoint* commit =
      Session(ranks[0].worker).Last<control::CommitCheckpoint>();
  ASSERT_NE(commit, nullptr);
  ASSERT_EQ(commit->step, StepId(step));
  Answer(ranks[0].worker, key, step);
  EXPECT_EQ(Job(key.job).checkpoint->step, StepId(step));
}

void ClusterTest::SayAll(const control::JobKey& key, control::Phase phase) {
  const std::vector<control::BoundRank> ranks = Job(key.job).ranks;
  for (const control::BoundRank& bound : ranks) Say(bound.worker, key, bound.rank.value(), phase);
}

std::vector<std::int64_t> ClusterTest::StoredSteps(const std::string& name) {
  std::vector<std::int64_t> steps;
  const auto records = store_->ReadSteps(Job(name).id, StepId(0), 1000).value();
  for (const store::StepRecord& record : records) steps.push_back(record.step.value());
  return steps;
}

}  // namespace takt::job
