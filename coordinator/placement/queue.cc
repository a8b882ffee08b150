// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace takt::placement {
namespace {

std::string Count(int number, const char* noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

// True if `worker` can join the workers that are in `gang` already. NCCL does not allow two ranks
// on one GPU.
bool Serves(const IdleWorker& worker, const Need& need, const std::vector<IdleWorker>& gang) {
  if (need.device != config::DeviceKind::kCuda) return true;
  if (!worker.has_gpu) return false;
  return !need.nccl ||
         (worker.has_nccl && std::ranges::find(gang, worker.gpu, &IdleWorker::gpu) == gang.end());
}

std::string Wanted(const Need& need) {
  std::string text = Count(need.workers, "worker");
  if (need.device == config::DeviceKind::kCuda)
    absl::StrAppend(&text, need.nccl ? " with a GPU of its own and NCCL" : " with a GPU");
  return text;
}

std::string WhyNot(const Need& need, const Capacity& capacity, int num_serving) {
  std::vector<std::string> others;
  const int num_lacking = static_cast<int>(capacity.idle.size()) - num_serving;
  if (num_lacking > 0) {
    others.push_back(absl::StrCat(num_lacking, " idle without, which ",
                                  need.nccl ? "transport: auto or " : "",
                                  "device: cpu would take"));
  }
  for (const auto& [job, number] : capacity.held)
    others.push_back(absl::StrCat(number, " held by job ", job));
  if (capacity.drained > 0) others.push_back(absl::StrCat(capacity.drained, " drained"));
  if (capacity.leaving > 0) others.push_back(absl::StrCat(capacity.leaving, " leaving"));
  if (others.empty()) others.push_back("no other is attached");
  return absl::StrCat("needs ", Wanted(need), ", ", num_serving,
                      " idle: ", absl::StrJoin(others, ", "));
}

}  // namespace

std::vector<Grant> GrantGangs(const std::vector<std::pair<std::string, Need>>& waiting,
                              Capacity capacity) {
  std::vector<Grant> grants;
  for (const auto& [job, its_need] : waiting) {
    const Need& need = its_need;
    Grant& grant = grants.emplace_back();
    std::vector<IdleWorker> gang;
    for (const IdleWorker& worker : capacity.idle) {
      if (Serves(worker, need, gang)) gang.push_back(worker);
    }
    if (static_cast<int>(gang.size()) < need.workers) {
      grant.reason = WhyNot(need, capacity, static_cast<int>(gang.size()));
      continue;
    }
    if (need.device != config::DeviceKind::kCuda)
      std::ranges::stable_sort(gang, {}, &IdleWorker::has_gpu);
    if (!need.up_to_all) gang.resize(need.workers);
    for (const IdleWorker& worker : gang) grant.workers.push_back(worker.name);
    std::erase_if(capacity.idle, [&](const IdleWorker& worker) {
      return std::ranges::find(grant.workers, worker.name) != grant.workers.end();
    });
    capacity.held[job] += static_cast<int>(grant.workers.size());
    grant.reason = absl::StrCat("got ", Count(static_cast<int>(grant.workers.size()), "worker"));
  }
  return grants;
}

}  // namespace takt::placement
