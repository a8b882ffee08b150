// SPDX-License-Identifier: Apache-2.0
#include "worker/session/memory_copies.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "common/metrics/catalog.h"
#include "common/program/program.h"
#include "worker/backend/plan_cache_text.h"
#include "worker/session/copy_restore.h"
#include "worker/session/copy_transfer.h"
#include "worker/session/parameter_state.h"

namespace takt::session {
namespace {

using worker_checkpoint::StateCopies;
using worker_checkpoint::StateCopy;

constexpr char kChannel[] = "copies", kAnswers[] = "copies-answers";

// Returns the copy to overwrite: one that is not whole, else the older one.
StateCopy& OlderOf(const std::array<std::shared_ptr<StateCopy>, 2>& pair) {
  return pair[0]->step() <= pair[1]->step() ? *pair[0] : *pair[1];
}

backend::MemoryBackend* DeviceOf(const train::ParameterStore& store) {
  return store.backend().memory_is_host() ? nullptr : &store.backend();
}

}  // namespace

MemoryCopies::MemoryCopies(MemoryCopiesOptions options) : options_(std::move(options)) {}

Rank MemoryCopies::Shifted(int by) const {
  const int size = options_.assignment->mesh.size();
  return Rank((options_.assignment->rank.value() + by + size) % size);
}

std::string MemoryCopies::PpRankText() const {
  return absl::StrCat(options_.assignment->mesh.PpRankOf(options_.assignment->rank).value());
}

// Returns the layers in the order of StateToCopy.
std::vector<LayerId> MemoryCopies::LayersOf(Rank rank) const {
  const mesh::Mesh& mesh = options_.assignment->mesh;
  const bool shares = program::ShardsOptimizer(options_.assignment->program);
  std::vector<LayerId> layers;
  for (const mesh::Stage& stage : options_.assignment->partition) {
    if (stage.pp_rank != mesh.PpRankOf(rank)) continue;
    for (LayerId layer = stage.first_layer; layer < stage.last_layer; ++layer) {
      if (!shares || layout::WriterOf(layer, mesh.num_replicas()) == mesh.ReplicaOf(rank))
        layers.push_back(layer);
    }
  }
  return layers;
}

absl::StatusOr<std::optional<control::Resumed>> MemoryCopies::Restore(
    transport::Transport& transport, train::ParameterStore& store) {
  const control::Assignment& assignment = *options_.assignment;
  const StateCopies held = options_.kept->Begin(assignment.key.job, assignment.job_id);
  if (assignment.copies.at_most == StepId(0)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::optional<RestoredCopies> restored,
                   RestoreFromCopies({.assignment = &assignment,
                                      .model = options_.model,
                                      .meeting = options_.meeting,
                                      .transport = &transport,
                                      .kernel_plan = options_.kept->kernels(assignment.job_id)},
                                     held, store));
  if (!restored.has_value()) return std::nullopt;
  if (!restored->kernel_plan.empty()) {
    kernel_plan_ = KeptPlan{.text = restored->kernel_plan,
                            .where = absl::StrCat("the copies of step ", restored->step.value())};
  }
  return control::Resumed{.step = restored->step, .from_memory = true};
}

void MemoryCopies::KeepKernels(const backend::PlanCache& plans) const {
  options_.kept->KeepKernels(options_.assignment->job_id,
                             backend::PlanText(plans.target(), plans.plans()));
}

void MemoryCopies::Keep(StateCopies others) {
  others.insert(others.end(), own_.begin(), own_.end());
  if (sends()) others.insert(others.end(), peer_.begin(), peer_.end());
  options_.kept->Keep(options_.assignment->job_id, std::move(others));
}

int MemoryCopies::PartOf(Rank rank) const {
  const mesh::Mesh& mesh = options_.assignment->mesh;
  const int experts = options_.model->experts.size;
  return experts > 1 ? mesh.DpRankOf(rank).value() % experts : mesh.TpRankOf(rank).value();
}

absl::StatusOr<MemoryCopies::Pair> MemoryCopies::TakePair(Rank rank, StateCopies& old,
                                                          const control::Resumed& resumed) const {
  const std::vector<LayerId> layers = LayersOf(rank);
  Pair pair;
  for (CopyPtr& copy : pair) {
    const auto same = std::ranges::find_if(old, [&](const CopyPtr& each) {
      return each->layers() == layers && each->part() == PartOf(rank);
    });
    if (same == old.end()) {
      ASSIGN_OR_RETURN(copy, StateCopy::Create(*options_.model, layers, PartOf(rank)));
      continue;
    }
    copy = *same;
    old.erase(same);
    // What is newer is of steps that are done again, and is overwritten first.
    if (!resumed.from_memory || copy->step() > resumed.step) copy->MarkBroken();
  }
  return pair;
}

absl::Status MemoryCopies::Begin(transport::Transport& transport, train::ParameterStore& store,
                                 const control::Resumed& resumed, transport::Collective* sharers) {
  const control::Assignment& assignment = *options_.assignment;
  store_ = &store;
  if (sharers != nullptr) moments_.emplace(assignment, store, *sharers);
  if (options_.metrics != nullptr)
    options_.metrics->Counter(metrics::kMemoryCopies, {assignment.key.job, PpRankText(), "failed"});
  StateCopies old = options_.kept->Begin(assignment.key.job, assignment.job_id);
  ASSIGN_OR_RETURN(own_, TakePair(assignment.rank, old, resumed));
  if (sends()) {
    ASSIGN_OR_RETURN(peer_, TakePair(Shifted(-assignment.copies.shift), old, resumed));
    RETURN_IF_ERROR(OpenChannels(transport));
  }
  // A rank that has moved may be the only holder of other layers until the first new copies are
  // there.
  Keep(resumed.from_memory ? std::move(old) : StateCopies());
  return absl::OkStatus();
}

// All ranks open their channels by sender, receiver and name, since each opening waits for its
// peer.
absl::Status MemoryCopies::OpenChannels(transport::Transport& transport) {
  const Rank self = options_.assignment->rank;
  const Rank to = Shifted(options_.assignment->copies.shift);
  const Rank from = Shifted(-options_.assignment->copies.shift);
  struct End {
    std::string name;
    std::size_t bytes = 0;
    std::unique_ptr<transport::SendChannel>* send = nullptr;
    std::unique_ptr<transport::RecvChannel>* recv = nullptr;
  };
  std::unique_ptr<transport::SendChannel> copies_out, answers_out;
  std::unique_ptr<transport::RecvChannel> copies_in, answers_in;
  std::map<std::tuple<Rank, Rank, std::string>, End> ends;
  ends[{self, to, kChannel}] = {.name = kChannel, .bytes = kCopyMessageBytes, .send = &copies_out};
  ends[{from, self, kChannel}] = {.name = kChannel, .bytes = kCopyMessageBytes, .recv = &copies_in};
  ends[{self, from, kAnswers}] = {
      .name = kAnswers, .bytes = kCopyAnswerBytes, .send = &answers_out};
  ends[{to, self, kAnswers}] = {.name = kAnswers, .bytes = kCopyAnswerBytes, .recv = &answers_in};
  for (auto& [key, end] : ends) {
    if (end.send != nullptr) {
      ASSIGN_OR_RETURN(*end.send, transport.OpenSend(std::get<1>(key), end.name, end.bytes));
    } else {
      ASSIGN_OR_RETURN(*end.recv, transport.OpenRecv(std::get<0>(key), end.name, end.bytes));
    }
  }
  const Generation generation = options_.assignment->key.generation;
  to_.emplace(std::move(copies_out), std::move(answers_in), generation);
  from_.emplace(std::move(copies_in), std::move(answers_out), generation);
  return absl::OkStatus();
}

void MemoryCopies::Copy(StepId step) {
  Finish();
  StateCopy& copy = OlderOf(own_);
  const bool copies = Take(copy, step);
  if (copies || (to_.has_value() && to_->open())) {
    sender_.Add([this, &copy, step, copies] {
      // An error of Close means that the other rank is gone.
      if (!copies) return to_->Close(step).IgnoreError();
      copy.MarkWhole(step);
      Record(step, to_.has_value() ? to_->Send(copy, step) : absl::OkStatus());
    });
  }
  if (!from_.has_value() || !from_->open()) return;
  receiver_.Add([this, step, copies] {
    const absl::Status received = from_->Receive(OlderOf(peer_), step, /*last=*/!copies);
    if (!received.ok()) Record(step, received);
  });
}

bool MemoryCopies::Take(StateCopy& copy, StepId step) {
  // Ranks that share need the shards of this one, whatever becomes of its own copies.
  if (failed_ && !moments_.has_value()) return false;
  // The first copies are whole everywhere, so those of another rank are not needed any more.
  if (boundaries_++ == 1) Keep({});
  copy.MarkBroken();
  const absl::Status taken = TakeState(copy, step);
  if (failed_) return false;
  if (!taken.ok()) Record(step, taken);
  return taken.ok();
}

absl::Status MemoryCopies::TakeState(StateCopy& copy, StepId step) {
  const mesh::Mesh& mesh = options_.assignment->mesh;
  // Without shards these are all layers of which this rank has the primary copy.
  const int replica = moments_.has_value() ? mesh.ReplicaOf(options_.assignment->rank) : 0;
  const std::vector<worker_checkpoint::LayerState> live = StateToCopy(
      *options_.model, *store_, replica, moments_.has_value() ? mesh.num_replicas() : 1);
  absl::Status taken = copy.Take(live, options_.threads, DeviceOf(*store_));
  if (!moments_.has_value()) return taken;
  // The other ranks wait for this one even if it could not copy.
  const auto place_of = [&](LayerId layer, const model::Parameter& parameter) {
    return worker_checkpoint::PlaceIn(*options_.model, layer, parameter, copy.Values(layer));
  };
  taken.Update(moments_->Join(step, place_of, MomentShards::Of::kRank));
  return taken;
}

void MemoryCopies::Finish() {
  sender_.Finish();
  receiver_.Finish();
}

void MemoryCopies::Record(StepId step, const absl::Status& status) {
  const std::string& job = options_.assignment->key.job;
  // After an abort or the loss of a peer the generation ends anyway.
  const bool ends = absl::IsAborted(status) || absl::IsUnavailable(status);
  if (absl::IsDataLoss(status)) {
    // Both ranks go on copying, because each waits for the other's messages at the next boundary.
    Log(LogLevel::kWarning, "a copy of the state in memory came damaged; the next one replaces it",
        {{"job", job},
         {"step", std::to_string(step.value())},
         {"error", std::string(status.message())}});
  } else if (!status.ok() && !failed_.exchange(true) && !ends) {
    Log(LogLevel::kWarning, "no more copies of the state are kept in memory; training goes on",
        {{"job", job},
         {"step", std::to_string(step.value())},
         {"error", std::string(status.message())}});
  }
  if (options_.metrics == nullptr || ends) return;
  options_.metrics
      ->Counter(metrics::kMemoryCopies, {job, PpRankText(), status.ok() ? "done" : "failed"})
      .Increment();
  if (status.ok()) {
    options_.metrics->Gauge(metrics::kMemoryCopyStep, {job, PpRankText()})
        .Set(static_cast<double>(step.value()));
  }
}

}  // namespace takt::session
