// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/step_collector.h"

#include <algorithm>
#include <iterator>

namespace takt::job {

StepCollector::StepCollector(mesh::Mesh mesh, StepId after)
    : mesh_(mesh), last_taken_(after), ended_(mesh.size()), newest_(mesh.size()) {}

bool StepCollector::Add(const control::RankStepReport& report) {
  if (report.step < StepId(1) || !AddOther(report.rank, report.sequence, report.step)) return false;
  StepId& newest = newest_[report.rank.value()];
  newest = std::max(newest, report.step);
  if (report.step <= last_taken_)
    return true;  // sent again, or too late to count: durable without it
  pending_[report.step].try_emplace(report.rank, report);
  return true;
}

bool StepCollector::AddOther(Rank rank, std::int64_t sequence, StepId step) {
  if (rank < Rank(0) || rank >= Rank(mesh_.size()) || step < StepId(0)) return false;
  if (step.value() - last_taken_.value() > kMaxAhead) return false;
  std::map<std::int64_t, StepId>& reports = unacknowledged_[rank];
  if (static_cast<std::int64_t>(reports.size()) > kMaxAhead) return false;
  reports.try_emplace(sequence, step);
  return true;
}

void StepCollector::EndRank(Rank rank) { ended_[rank.value()] = true; }

// Workers of older versions tell the result on rank 0 only, so a part without tokens has none.
const control::RankStepReport* StepCollector::ResultOf(const Parts& parts) const {
  if (const auto first = parts.find(Rank(0)); first != parts.end()) return &first->second;
  if (!ended_.empty() && !ended_[0]) return nullptr;
  const auto other =
      std::ranges::find_if(parts, [](const auto& entry) { return entry.second.tokens > 0; });
  return other == parts.end() ? nullptr : &other->second;
}

bool StepCollector::IsComplete(StepId step, const Parts& parts) const {
  if (ResultOf(parts) == nullptr) return false;
  if (newest_[0].value() - step.value() >= kMaxLag) return true;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (!ended_[rank] && !parts.contains(Rank(rank))) return false;
  }
  return true;
}

store::StepRecord StepCollector::Merge(const control::RankStepReport& result,
                                       const Parts& parts) const {
  store::StepRecord record{.step = result.step,
                           .loss = result.loss,
                           .grad_norm = result.grad_norm,
                           .learning_rate = result.learning_rate,
                           .tokens = result.tokens,
                           .step_seconds = result.step_seconds,
                           .validation_loss = result.validation_loss,
                           .validation_bytes_per_token = result.validation_bytes_per_token};
  if (std::ssize(parts) == mesh_.size()) {
    for (const auto& [rank, part] : parts) record.busy_by_rank.push_back(part.busy_seconds);
  }
  std::vector<double> idle(mesh_.pp_size), counts(mesh_.pp_size);
  for (const auto& [rank, part] : parts) {
    if (!(part.step_seconds > 0)) continue;
    const int pp_rank = mesh_.PpRankOf(rank).value();
    idle[pp_rank] += std::clamp(1 - part.busy_seconds / part.step_seconds, 0.0, 1.0);
    counts[pp_rank] += 1;
  }
  // A pp rank without any part has no figure. Positions in the list are pp ranks, so there is no
  // list at all then.
  double sum = 0;
  int known = 0;
  for (int p = 0; p < mesh_.pp_size; ++p) {
    if (counts[p] == 0) continue;
    idle[p] /= counts[p];
    sum += idle[p];
    ++known;
  }
  if (known > 0) record.bubble_fraction = sum / known;
  if (known == mesh_.pp_size) record.bubble_by_pp_rank = std::move(idle);
  return record;
}

std::vector<store::StepRecord> StepCollector::Take(bool incomplete_too) {
  std::vector<store::StepRecord> ready;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto& [step, parts] = *it;
    const control::RankStepReport* const result = ResultOf(parts);
    if (!(incomplete_too ? result != nullptr : IsComplete(step, parts))) {
      if (!incomplete_too) break;
      it = pending_.erase(it);
      continue;
    }
    // Ranks report every step in order, so the report of a missing step is still on its way.
    if (!incomplete_too && step.value() != last_taken_.value() + 1) break;
    ready.push_back(Merge(*result, parts));
    last_taken_ = step;
    it = pending_.erase(it);
  }
  return ready;
}

std::vector<store::StepRecord> StepCollector::TakeReady() { return Take(false); }
std::vector<store::StepRecord> StepCollector::TakeRest() { return Take(true); }

std::map<Rank, std::int64_t> StepCollector::TakeAcknowledgements(StepId committed) {
  std::map<Rank, std::int64_t> newest;
  for (auto& [rank, reports] : unacknowledged_) {
    while (!reports.empty() && reports.begin()->second <= committed) {
      newest[rank] = reports.begin()->first;
      reports.erase(reports.begin());
    }
  }
  return newest;
}

}  // namespace takt::job
