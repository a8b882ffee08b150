// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/rank_work.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/owner.h"
#include "tests/simulation/training_state.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/ownership.h"

namespace takt::simulation {
namespace {

constexpr absl::Duration kAskAgain = absl::Milliseconds(200);
// How often a rank looks whether its part of a checkpoint is written.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

// Keys of the rendezvous.
constexpr char kOffer[] = "offer/", kChoice[] = "choice";
// What rank 0 says if no step can be had from copies.
constexpr char kNoCopies[] = "none";

std::string StateFile(Rank rank) { return absl::StrCat("state-", rank.value()); }

// As the worker's client of the rendezvous does: a meeting that is over is no error of this worker.
absl::Status Explain(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::AbortedError(std::string(status.message())) : status;
}

}  // namespace

RankWork::RankWork(World* world, CoordinatorProcess* coordinator, DataPlane* plane, RankHost host)
    : world_(*world), coordinator_(*coordinator), plane_(*plane), host_(std::move(host)) {}

void RankWork::Begin(const std::function<absl::StatusOr<control::Assignment>()>& decode) {
  absl::StatusOr<control::Assignment> assignment = decode();
  TAKT_CHECK(assignment.ok());
  assignment_ = *std::move(assignment);
  begun_ = true;
  state_ = InitialState(assignment_.key.job);
  if (assignment_.copies.every_steps > 0) {
    copies_ = std::make_shared<RankCopies>(&world_, &plane_, host_.kept, assignment_, host_.later);
  } else {
    host_.kept->Forget(key().job);
  }
  host_.later(world_.random.Between(absl::Milliseconds(10), absl::Milliseconds(500)),
              [self = shared_from_this()] { self->OpenCheckpoints(); });
}

std::string RankWork::Directory() const {
  return absl::StrCat(world_.disk.root(), "/", assignment_.job.checkpoint->directory);
}

bool RankWork::UseDisk(const std::function<void()>& use) {
  using_disk_ = true;
  const bool alive = host_.use_disk(use);
  using_disk_ = false;
  if (alive && stopped_) TryGone();
  return alive && !stopped_;
}

void RankWork::OpenCheckpoints() {
  if (stopped_) return;
  if (!assignment_.job.checkpoint || rank() != Rank(0)) return OfferCopies();
  absl::Status taken;
  if (!UseDisk([&] { taken = TakeDirectory(); })) return;
  if (!taken.ok()) return Built(taken);
  OfferCopies();
}

// As session::RankCheckpoints::Open does.
absl::Status RankWork::TakeDirectory() const {
  worker_checkpoint::FileSystem& files = *host_.files;
  const std::string directory = Directory();
  const checkpoint::Owner owner{.job_id = assignment_.job_id,
                                .job = key().job,
                                .generation = key().generation,
                                .epoch = assignment_.epoch};
  RETURN_IF_ERROR(
      worker_checkpoint::TakeOwnership(files, directory, owner, assignment_.other_jobs));
  RETURN_IF_ERROR(worker_checkpoint::NoteEpoch(files, directory, owner));
  return worker_checkpoint::RemoveStale(files, directory, key().job, key().generation).status();
}

// From here to RestoreCopies it does what session::RestoreFromCopies does, without damage.
void RankWork::OfferCopies() {
  if (copies_ == nullptr || assignment_.copies.at_most == StepId(0)) return RestoreCheckpoint();
  phase_ = "CONNECT";
  waiting_for_ = "copies of the state";
  SetKey(absl::StrCat(kOffer, rank().value()), session::FormatOffer(copies_->Offer()),
         [self = shared_from_this()] { self->FollowChoice(); });
}

void RankWork::FollowChoice() {
  std::vector<std::string> names;
  for (int rank = 0; rank < num_ranks(); ++rank) names.push_back(absl::StrCat(kOffer, rank));
  WaitKeys(names, [self = shared_from_this()](const job::Rendezvous::Values& values) {
    std::vector<session::CopyOffer> offers;
    for (const std::string& text : values) {
      absl::StatusOr<session::CopyOffer> offer = session::ParseOffer(text);
      TAKT_CHECK(offer.ok());
      offers.push_back(*std::move(offer));
    }
    if (self->rank() == Rank(0)) return self->ProposeCopies(offers);
    self->WaitKeys({kChoice}, [self, offers](const job::Rendezvous::Values& choice) {
      self->RestoreCopies(choice.at(0), offers);
    });
  });
}

void RankWork::ProposeCopies(const std::vector<session::CopyOffer>& offers) {
  const session::CopyChoice choice = session::ChooseCopies(
      offers,
      {.at_least = std::max(assignment_.saved, StepId(1)), .at_most = assignment_.copies.at_most});
  const std::string text = choice.step == StepId(0) ? kNoCopies : session::FormatChoice(choice);
  SetKey(kChoice, text,
         [self = shared_from_this(), text, offers] { self->RestoreCopies(text, offers); });
}

void RankWork::RestoreCopies(const std::string& choice,
                             const std::vector<session::CopyOffer>& offers) {
  if (choice == kNoCopies) {
    if (!assignment_.copies.required) return RestoreCheckpoint();
    return Built(absl::InvalidArgumentError("no copies are left, and the job saves no files"));
  }
  const absl::StatusOr<session::CopyChoice> chosen = session::ParseChoice(choice, num_ranks());
  TAKT_CHECK(chosen.ok());
  const std::optional<std::uint64_t> state = copies_->StateOf(*chosen, offers);
  if (!state) return Built(absl::DataLossError("no rank holds what was chosen"));
  state_ = *state;
  last_step_ = chosen->step;
  from_memory_ = true;
  host_.later(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(300)),
              [self = shared_from_this()] { self->Connect(); });
}

void RankWork::RestoreCheckpoint() {
  if (stopped_) return;
  if (!assignment_.job.checkpoint) return Connect();
  if (rank() != Rank(0)) {
    phase_ = "CONNECT";
    waiting_for_ = "rank 0 to choose a step";
    return WaitKeys({"step"}, [self = shared_from_this()](const job::Rendezvous::Values& values) {
      self->Load(StepId(std::stoll(values.at(0))));
    });
  }
  absl::StatusOr<StepId> step = absl::UnknownError("not chosen");
  if (!UseDisk([&] { step = ChooseStep(); })) return;
  if (!step.ok()) return Built(step.status());
  SetKey("step", absl::StrCat(step->value()),
         [self = shared_from_this(), step = *step] { self->Load(step); });
}

// Chooses the checkpoint to resume from, as session::AgreeOnResume does.
absl::StatusOr<StepId> RankWork::ChooseStep() const {
  world_.oracle.Chose(key());
  if (assignment_.resume == "none") return StepId(0);
  ASSIGN_OR_RETURN(const std::vector<checkpoint::ListedStep> steps,
                   checkpoint::ListSteps(Directory()));
  const checkpoint::ChosenStep chosen = checkpoint::ChooseStep(
      steps, assignment_.resume_at_most,
      [this](const checkpoint::ListedStep& step) { return ReadState(step.step).status(); });
  return chosen.step.value_or(StepId(0));
}

void RankWork::Load(StepId step) {
  phase_ = "LOAD";
  waiting_for_.clear();
  last_step_ = step;
  if (step > StepId(0)) {
    const absl::StatusOr<std::uint64_t> state = ReadState(step);
    if (!state.ok()) return Built(absl::UnavailableError(std::string(state.status().message())));
    state_ = *state;
  }
  Connect();
}

void RankWork::Connect() {
  if (stopped_) return;
  phase_ = "CONNECT";
  waiting_for_ = "all ranks";
  SetKey(absl::StrCat("at/", rank().value()), ".", [self = shared_from_this()] {
    std::vector<std::string> all;
    for (int rank = 0; rank < self->num_ranks(); ++rank) all.push_back(absl::StrCat("at/", rank));
    self->WaitKeys(all, [self](const job::Rendezvous::Values&) { self->BeginCopies(); });
  });
}

void RankWork::BeginCopies() {
  const control::Resumed resumed{.step = last_step_, .from_memory = from_memory_};
  if (copies_ != nullptr) copies_->Begin(resumed);
  Built(resumed);
}

void RankWork::Built(absl::StatusOr<control::Resumed> resumed) {
  if (stopped_ || std::exchange(built_, true)) return;
  waiting_for_ = resumed.ok() ? "the start" : "";
  host_.built(std::move(resumed));
}

absl::Duration RankWork::Delay() const {
  return world_.random.Between(host_.path->least_delay, host_.path->most_delay);
}

void RankWork::GiveUp(const absl::Status& status) { Built(Explain(status)); }

void RankWork::SetKey(const std::string& name, const std::string& value,
                      std::function<void()> then) {
  if (stopped_ || dead_) return;
  const auto self = shared_from_this();
  const absl::Duration sent =
      std::max(world_.loop.now() + Delay(), host_.path->FreeAt(End::kWorker));
  world_.loop.At(sent, [self, name, value, then = std::move(then)] {
    self->coordinator_.SetKey(
        self->key(), name, value, [self, name, value, then](const absl::Status& status) {
          const absl::Duration late = std::max(
              self->Delay(), self->host_.path->FreeAt(End::kCoordinator) - self->world_.loop.now());
          self->host_.later(late, [self, name, value, then, status] {
            if (self->stopped_) return;
            if (absl::IsUnavailable(status)) {
              self->host_.later(kAskAgain,
                                [self, name, value, then] { self->SetKey(name, value, then); });
            } else if (!status.ok()) {
              self->GiveUp(status);
            } else {
              then();
            }
          });
        });
  });
}

void RankWork::WaitKeys(const std::vector<std::string>& names,
                        std::function<void(const job::Rendezvous::Values&)> then) {
  if (stopped_ || dead_) return;
  const auto self = shared_from_this();
  const absl::Duration sent =
      std::max(world_.loop.now() + Delay(), host_.path->FreeAt(End::kWorker));
  world_.loop.At(sent, [self, names, then = std::move(then)] {
    self->coordinator_.WaitKeys(
        self->key(), names,
        [self, names, then](const absl::StatusOr<job::Rendezvous::Values>& values) {
          const absl::Duration late = std::max(
              self->Delay(), self->host_.path->FreeAt(End::kCoordinator) - self->world_.loop.now());
          self->host_.later(late, [self, names, then, values] {
            if (self->stopped_) return;
            if (absl::IsUnavailable(values.status())) {
              self->host_.later(kAskAgain, [self, names, then] { self->WaitKeys(names, then); });
            } else if (!values.ok()) {
              self->GiveUp(values.status());
            } else {
              then(*values);
            }
          });
        });
  });
}

void RankWork::Run() {
  if (stopped_) return;
  running_ = true;
  phase_ = "RUN";
  waiting_for_.clear();
  plane_.Join(shared_from_this(), StepId(assignment_.job.steps));
}

void RankWork::BeginStep(StepId step, std::function<void()> exchanges) {
  if (stopped_ || ended_ || dead_) return;
  phase_ = absl::StrCat("1F0 of step ", step.value());
  const auto shape = std::ranges::find(world_.config.jobs, key().job, &JobShape::name);
  const absl::Duration time = shape->step_time * host_.slowness() +
                              world_.random.Between(absl::ZeroDuration(), shape->step_time / 10);
  host_.later(time, [self = shared_from_this(), step, exchanges = std::move(exchanges)] {
    self->ReachExchange(step, exchanges);
  });
}

void RankWork::ReachExchange(StepId step, const std::function<void()>& exchanges) {
  if (stopped_ || ended_) return;
  // A save waits until the one before is written, and a copy until the one before is sent.
  const bool waits = (saving_ && SavesAfter(step)) ||
                     (copies_ != nullptr && copies_->CopiesAfter(step) && copies_->busy());
  if (!waits) return exchanges();
  host_.later(kLookAgain, [self = shared_from_this(), step, exchanges] {
    self->ReachExchange(step, exchanges);
  });
}

void RankWork::CompleteStep(StepId step, std::function<void()> done) {
  host_.later(
      world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(20)),
      [self = shared_from_this(), step, done = std::move(done)] { self->FinishStep(step, done); });
}

bool RankWork::SavesAfter(StepId step) const {
  if (!assignment_.job.checkpoint) return false;
  const std::int64_t every = assignment_.job.checkpoint->every_steps;
  return step == StepId(assignment_.job.steps) || (every > 0 && step.value() % every == 0);
}

void RankWork::FinishStep(StepId step, const std::function<void()>& done) {
  if (stopped_ || ended_) return;
  state_ = StateAfter(state_, step);
  last_step_ = step;
  world_.oracle.RankDid(key(), step);
  host_.report(control::RankStepReport{
      .rank = rank(), .step = step, .step_seconds = 0.1, .loss = LossOf(state_), .tokens = 1});
  if (SavesAfter(step)) Save(step);
  if (copies_ != nullptr && copies_->CopiesAfter(step)) copies_->Copy(step, state_);
  done();
}

void RankWork::TakeCopy(StepId step, std::uint64_t state, std::function<void()> answer) {
  if (!stopped_ && copies_ != nullptr) copies_->Take(step, state, std::move(answer));
}

void RankWork::EndRun(session::RunEnd end) {
  if (stopped_ || ended_ || dead_) return;
  steps_over_ = true;
  const bool saved = SavesAfter(last_step_);
  FinishSaving([self = shared_from_this(), end, saved] {
    if (self->assignment_.job.checkpoint && !saved) self->Save(self->last_step_);
    self->FinishSaving([self, end] { self->EndWith(end); });
  });
}

void RankWork::FinishSaving(const std::function<void()>& then) {
  if (stopped_ || ended_) return;
  if (!saving_) return then();
  host_.later(kLookAgain, [self = shared_from_this(), then] { self->FinishSaving(then); });
}

void RankWork::Save(StepId step) {
  saving_ = true;
  host_.later(world_.random.Between(absl::Milliseconds(5), absl::Milliseconds(400)),
              [self = shared_from_this(), step, state = state_] {
                if (self->stopped_) return;
                absl::StatusOr<checkpoint::FileEntry> file = absl::UnknownError("not written");
                if (!self->UseDisk([&] { file = self->WriteState(step, state); })) return;
                self->saving_ = false;
                control::CheckpointReport report{.rank = self->rank(), .step = step};
                if (file.ok()) {
                  report.files = {*std::move(file)};
                } else {
                  report.error = file.status().ToString();
                }
                self->host_.report(std::move(report));
              });
}

// Makes the calls of worker_checkpoint::SaveShards in their order.
absl::StatusOr<checkpoint::FileEntry> RankWork::WriteState(StepId step, std::uint64_t state) const {
  const std::string text = absl::StrCat(state, "\n");
  const std::string directory = absl::StrCat(
      Directory(), "/", checkpoint::PartialDirectoryName(step, key().job, key().generation));
  const std::string name = StateFile(rank());
  RETURN_IF_ERROR(host_.files->CreateDirectory(directory));
  RETURN_IF_ERROR(
      worker_checkpoint::WriteFile(*host_.files, absl::StrCat(directory, "/", name), text));
  RETURN_IF_ERROR(host_.files->SyncDirectory(directory));
  return checkpoint::FileEntry{.name = name,
                               .bytes = std::ssize(text),
                               .xxh3_128 = checkpoint::HashOf(std::as_bytes(std::span(text)))};
}

absl::StatusOr<std::uint64_t> RankWork::ReadState(StepId step) const {
  std::ifstream file(
      absl::StrCat(Directory(), "/", checkpoint::StepDirectoryName(step), "/", StateFile(Rank(0))));
  std::uint64_t state = 0;
  if (file >> state) return state;
  return absl::DataLossError(absl::StrCat("the state of step ", step.value(), " cannot be read"));
}

void RankWork::LosePeer(Rank peer) {
  if (steps_over_) return;  // nothing is sent any more
  EndWith(absl::UnavailableError(absl::StrCat("rank ", peer.value(), " is gone")));
}

void RankWork::EndWith(absl::StatusOr<session::RunEnd> end) {
  if (stopped_ || dead_) return;
  host_.later(absl::ZeroDuration(), [self = shared_from_this(), end = std::move(end)] {
    if (self->stopped_ || std::exchange(self->ended_, true)) return;
    if (!end.ok()) self->plane_.Leave(self->key(), self->rank());
    self->host_.run_ended(end);
  });
}

void RankWork::Stop(const absl::Status& reason) {
  if (std::exchange(stopped_, true)) return;
  waiting_for_ = std::string(reason.message());
  TearDown();
}

void RankWork::Release() { TearDown(); }

void RankWork::TearDown() {
  if (std::exchange(released_, true)) return;
  stopped_ = true;
  if (running_ && !steps_over_) plane_.Leave(key(), rank());
  host_.later(world_.random.Between(absl::ZeroDuration(), absl::Milliseconds(500)),
              [self = shared_from_this()] {
                self->torn_down_ = true;
                self->TryGone();
              });
}

// The thread ends once nothing uses the disk any more.
void RankWork::TryGone() {
  if (!torn_down_ || using_disk_ || std::exchange(dead_, true)) return;
  world_.oracle.RankIsGone(key(), rank());
  host_.gone();
}

void RankWork::Die(bool tells_peers) {
  if (std::exchange(dead_, true)) return;
  stopped_ = true;
  world_.oracle.RankIsGone(key(), rank());
  if (running_ && !steps_over_ && tells_peers) plane_.Leave(key(), rank());
}

control::RankStatus RankWork::Status() const {
  return {.rank = assignment_.rank,
          .worker = host_.worker,
          .last_step = last_step_,
          .instruction = phase_,
          .waiting_for = waiting_for_,
          .instruction_step = running_ ? StepId(last_step_.value() + 1) : StepId(0)};
}

}  // namespace takt::simulation
