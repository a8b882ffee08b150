// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/data_plane.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace takt::simulation {

void DataPlane::Join(const std::shared_ptr<Member>& member, StepId last) {
  Group& group = groups_[member->key()];
  group.members[member->rank()] = member;
  if (!group.begun) {
    group.done = member->last_step();
    group.last = last;
  }
  if (!group.gone.empty()) return Tell(member, *group.gone.begin());
  Advance(member->key());
}

void DataPlane::Leave(const control::JobKey& key, Rank rank) {
  Group& group = groups_[key];
  group.members.erase(rank);
  if (!group.gone.insert(rank).second) return;
  for (const auto& [other, member] : group.members) Tell(member, rank);
}

void DataPlane::Tell(const std::shared_ptr<Member>& member, Rank peer) {
  const absl::Duration delay =
      world_.random.Between(absl::Milliseconds(10), absl::Milliseconds(800));
  world_.loop.After(delay, [member, peer] { member->LosePeer(peer); });
}

void DataPlane::BreakLink() {
  std::vector<const Group*> linked;
  for (const auto& [key, group] : groups_) {
    if (group.members.size() >= 2) linked.push_back(&group);
  }
  if (linked.empty()) return;
  const Group& group = *linked[world_.random.Between(0, std::ssize(linked) - 1)];
  const auto& [first, member] = *group.members.begin();
  const auto& [second, other] = *std::next(group.members.begin());
  world_.trace.Add("network", "the link of ranks ", first.value(), " and ", second.value(),
                   " of job ", member->key().job, " breaks");
  Tell(member, second);
  Tell(other, first);
}

void DataPlane::SendCopy(const control::JobKey& key, Rank to, StepId step, std::uint64_t state,
                         std::function<void()> answer) {
  const absl::Duration delay =
      world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(300));
  world_.loop.After(delay, [this, key, to, step, state, answer = std::move(answer)] {
    const auto& members = groups_[key].members;
    const auto receiver = members.find(to);
    if (receiver == members.end()) return;
    // The receiver may leave in what follows.
    const std::shared_ptr<Member> member = receiver->second;
    member->TakeCopy(step, state, answer);
  });
}

void DataPlane::Advance(const control::JobKey& key) {
  Group& group = groups_[key];
  if (!group.busy.empty() || !group.gone.empty() || group.members.empty()) return;
  if (static_cast<int>(group.members.size()) < group.members.begin()->second->num_ranks()) return;
  const auto members = group.members;  // a member may leave in what follows
  if (group.done >= group.last) {
    const session::RunEnd end = group.halts ? session::RunEnd::kHalted : session::RunEnd::kLastStep;
    for (const auto& [rank, member] : members) member->EndRun(end);
    return;
  }
  // All ranks learn with the end of one step that one of them was asked to halt, and end after the
  // next one.
  const bool asked =
      std::ranges::any_of(members, [](const auto& entry) { return entry.second->halting(); });
  const StepId next(group.done.value() + 1);
  group.begun = true;
  if (asked && !group.halts && next < group.last) {
    group.last = next;
    group.halts = true;
  }
  for (const auto& [rank, member] : members) group.busy.insert(rank);
  group.exchanged = false;
  for (const auto& [rank, member] : members)
    member->BeginStep(next, [this, key, rank = rank] { Exchange(key, rank); });
}

// The exchange fails for all ranks if one is gone before it. Afterwards each rank completes the
// step alone.
void DataPlane::Exchange(const control::JobKey& key, Rank rank) {
  Group& group = groups_[key];
  group.busy.erase(rank);
  if (!group.busy.empty() || !group.gone.empty() || std::exchange(group.exchanged, true)) return;
  const auto members = group.members;
  const StepId step(group.done.value() + 1);
  for (const auto& [other, member] : members) group.busy.insert(other);
  for (const auto& [other, member] : members)
    member->CompleteStep(step, [this, key, other = other] { StepDone(key, other); });
}

void DataPlane::StepDone(const control::JobKey& key, Rank rank) {
  Group& group = groups_[key];
  group.busy.erase(rank);
  if (!group.busy.empty() || !group.gone.empty()) return;
  ++group.done;
  Advance(key);
}

}  // namespace takt::simulation
