// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/rank_copies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/simulation/random.h"

namespace takt::simulation {
namespace {

std::vector<LayerId> LayersIn(const LayerRange& range) {
  std::vector<LayerId> layers;
  for (LayerId layer = range.first; layer < range.end; ++layer) layers.push_back(layer);
  return layers;
}

// Returns the copy to overwrite: one that is not whole, else the older one.
std::shared_ptr<StateCopy> OlderOf(const std::array<std::shared_ptr<StateCopy>, 2>& pair) {
  return pair[0]->step <= pair[1]->step ? pair[0] : pair[1];
}

// Takes two copies of these layers out of `old`, or makes new ones.
std::array<std::shared_ptr<StateCopy>, 2> TakePair(const LayerRange& layers, StateCopies& old,
                                                   const control::Resumed& resumed) {
  std::array<std::shared_ptr<StateCopy>, 2> pair;
  for (std::shared_ptr<StateCopy>& copy : pair) {
    const auto same =
        std::ranges::find_if(old, [&](const auto& each) { return each->layers == layers; });
    if (same == old.end()) {
      copy = std::make_shared<StateCopy>(StateCopy{.layers = layers});
      continue;
    }
    copy = *same;
    old.erase(same);
    if (!resumed.from_memory || copy->step > resumed.step) copy->step = StepId(0);
  }
  return pair;
}

}  // namespace

RankCopies::RankCopies(World* world, DataPlane* plane, KeptCopies* kept,
                       const control::Assignment& assignment, Later later)
    : world_(*world),
      plane_(*plane),
      kept_(*kept),
      later_(std::move(later)),
      key_(assignment.key),
      job_id_(assignment.job_id),
      rank_(assignment.rank),
      mesh_(assignment.mesh),
      copies_(assignment.copies),
      last_(assignment.job.steps) {}

Rank RankCopies::Shifted(int by) const {
  return Rank((rank_.value() + by + mesh_.size()) % mesh_.size());
}

LayerRange RankCopies::LayersOf(Rank rank) const {
  return simulation::LayersOf(mesh_.PpRankOf(rank), mesh_.pp_size);
}

session::CopyOffer RankCopies::Offer() const {
  session::CopyOffer offer;
  offer.needs = LayersIn(LayersOf(rank_));
  for (const std::shared_ptr<StateCopy>& copy : kept_.Begin(key_.job, job_id_)) {
    if (copy->step == StepId(0)) continue;
    for (const LayerId layer : LayersIn(copy->layers))
      offer.held[copy->step].try_emplace(layer, absl::StrCat(copy->state));
  }
  return offer;
}

std::optional<std::uint64_t> RankCopies::StateOf(
    const session::CopyChoice& choice, const std::vector<session::CopyOffer>& offers) const {
  std::optional<std::uint64_t> whole;
  for (const LayerId layer : LayersIn(LayersOf(rank_))) {
    Rank from = rank_;
    for (const session::CopyMove& move : choice.moves) {
      if (move.to == rank_ && move.layer == layer) from = move.from;
    }
    const auto& held = offers[from.value()].held;
    const auto layers = held.find(choice.step);
    if (layers == held.end()) return std::nullopt;
    const auto text = layers->second.find(layer);
    std::uint64_t state = 0;
    if (text == layers->second.end() || !absl::SimpleAtoi(text->second, &state))
      return std::nullopt;
    // Layers of different runs make a state that no undisturbed run has.
    whole = whole.value_or(state) == state ? state : Mix(*whole, state);
  }
  return whole;
}

void RankCopies::Keep(StateCopies others) {
  others.insert(others.end(), own_.begin(), own_.end());
  if (sends()) others.insert(others.end(), peer_.begin(), peer_.end());
  kept_.Keep(job_id_, std::move(others));
}

void RankCopies::Begin(const control::Resumed& resumed) {
  StateCopies old = kept_.Begin(key_.job, job_id_);
  own_ = TakePair(LayersOf(rank_), old, resumed);
  if (sends()) peer_ = TakePair(LayersOf(Shifted(-copies_.shift)), old, resumed);
  Keep(resumed.from_memory ? std::move(old) : StateCopies());
}

void RankCopies::Copy(StepId step, std::uint64_t state) {
  if (boundaries_++ == 1) Keep({});
  const std::shared_ptr<StateCopy> copy = OlderOf(own_);
  copy->step = StepId(0);
  copy->state = state;
  pending_ = sends() ? 2 : 1;
  later_(world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(100)),
         [self = shared_from_this(), copy, step] {
           copy->step = step;
           const auto sent = [self] { --self->pending_; };
           if (!self->sends()) return sent();
           self->plane_.SendCopy(self->key_, self->Shifted(self->copies_.shift), step, copy->state,
                                 sent);
         });
  if (!sends()) return;
  receiving_ = OlderOf(peer_);
  receiving_->step = StepId(0);
  awaited_ = step;
  TakeArrived();
}

void RankCopies::Take(StepId step, std::uint64_t state, std::function<void()> answer) {
  arrived_ = Arrived{.step = step, .state = state, .answer = std::move(answer)};
  TakeArrived();
}

// What comes before this rank is at the same boundary waits in the channel.
void RankCopies::TakeArrived() {
  if (receiving_ == nullptr || !arrived_ || arrived_->step != awaited_) return;
  const std::shared_ptr<StateCopy> copy = std::exchange(receiving_, nullptr);
  const Arrived arrived = *std::exchange(arrived_, std::nullopt);
  copy->state = arrived.state;
  copy->step = arrived.step;
  --pending_;
  arrived.answer();
}

}  // namespace takt::simulation
