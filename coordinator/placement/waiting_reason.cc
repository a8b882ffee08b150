// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/waiting_reason.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"

namespace takt::placement {
namespace {

// More names than these make a reason long and let it change with every job that ends.
constexpr std::size_t kMaxNamed = 4;

std::string Wanted(const Need& need) {
  std::string text = Counted(need.workers, "worker");
  if (need.device != config::DeviceKind::kCuda) return text;
  absl::StrAppend(&text, need.nccl ? " with a GPU of its own and NCCL" : " with a GPU");
  if (need.fp8 == model::Fp8Recipe::kTensor)
    absl::StrAppend(&text, " (precision: fp8 needs compute capability 8.9 or newer)");
  if (need.fp8 == model::Fp8Recipe::kBlock)
    absl::StrAppend(&text, " (precision: fp8 in blocks needs compute capability 9.0)");
  return text;
}

// Returns what would take the idle workers that do not suit the job. A transport between GPUs is
// refused together with device: cpu.
std::string WhatWouldTake(const Need& need) {
  if (need.fp8 != model::Fp8Recipe::kNone) {
    return absl::StrCat(need.nccl || need.cuda_ipc ? "transport: auto with " : "",
                        "device: cpu (or precision: bf16 where they have a GPU)");
  }
  if (need.nccl) return "transport: auto (and device: cpu where they have no GPU)";
  return need.cuda_ipc ? "transport: auto with device: cpu" : "device: cpu";
}

// Returns e.g. "job a", "jobs a, b", or "jobs a, b, c, d and 3 others".
std::string Jobs(const std::vector<std::string>& names) {
  const std::size_t named = std::min(names.size(), kMaxNamed);
  std::string text = absl::StrCat(names.size() == 1 ? "job " : "jobs ",
                                  absl::StrJoin(names.begin(), names.begin() + named, ", "));
  if (names.size() > named)
    absl::StrAppend(&text, " and ",
                    Counted(std::ssize(names) - static_cast<std::int64_t>(named), "other"));
  return text;
}

// Lists who has the workers that are missing. The jobs with the most workers are named.
std::vector<std::string> Others(const Obstacles& obstacles) {
  std::vector<std::string> others;
  if (obstacles.num_unfit > 0) {
    others.push_back(absl::StrCat(obstacles.num_unfit, " idle without, which ",
                                  WhatWouldTake(obstacles.need), " would take"));
  }
  if (obstacles.num_sharing > 0) {
    others.push_back(absl::StrCat(
        obstacles.num_sharing,
        " idle on a GPU that another one uses, too, which transport: auto would take"));
  }
  if (obstacles.num_old > 0) {
    others.push_back(
        absl::StrCat(obstacles.num_old, " idle whose takt-worker is too old for the job"));
  }
  std::vector<std::pair<std::string, int>> held(obstacles.held.begin(), obstacles.held.end());
  std::ranges::stable_sort(held, std::greater(), &std::pair<std::string, int>::second);
  for (std::size_t i = 0; i < std::min(held.size(), kMaxNamed); ++i)
    others.push_back(absl::StrCat(held[i].second, " held by job ", held[i].first));
  int rest = 0;
  for (std::size_t i = kMaxNamed; i < held.size(); ++i) rest += held[i].second;
  if (rest > 0) others.push_back(absl::StrCat(rest, " held by other jobs"));
  if (obstacles.drained > 0) others.push_back(absl::StrCat(obstacles.drained, " drained"));
  if (obstacles.leaving > 0) others.push_back(absl::StrCat(obstacles.leaving, " leaving"));
  if (obstacles.quarantined > 0)
    others.push_back(absl::StrCat(obstacles.quarantined, " quarantined"));
  if (others.empty()) others.emplace_back("no other is attached");
  return others;
}

}  // namespace

std::string InAbout(double seconds) {
  constexpr std::array kMinutes = {2, 3, 5, 10, 15, 20, 30, 45};
  constexpr std::array kHours = {1, 2, 3, 4, 6, 8, 12, 18, 24};
  if (seconds <= 60) return "in less than a minute";
  for (const int minutes : kMinutes) {
    if (seconds <= minutes * 60) return absl::StrCat("in about ", minutes, " min");
  }
  for (const int hours : kHours) {
    if (seconds <= hours * 3600) return absl::StrCat("in about ", hours, " h");
  }
  constexpr double kDay = 24 * 3600;
  constexpr double kMostDays = 100;
  if (seconds > kMostDays * kDay) return absl::StrCat("in more than ", kMostDays, " days");
  return absl::StrCat("in about ", static_cast<int>(seconds / kDay) + 1, " days");
}

std::string WhyItWaits(const Obstacles& obstacles) {
  const Need& need = obstacles.need;
  std::string text = absl::StrCat("needs ", Wanted(need), ", ", obstacles.num_idle, " idle");
  if (obstacles.num_idle < need.workers) {
    absl::StrAppend(&text, ": ", absl::StrJoin(Others(obstacles), ", "));
  } else if (!obstacles.reserved_for.empty()) {
    absl::StrAppend(&text, ": reserved for ", Jobs(obstacles.reserved_for));
  }
  if (!obstacles.preempts.empty()) {
    absl::StrAppend(&text, "; ", Jobs(obstacles.preempts),
                    obstacles.preempts.size() == 1 ? " of a lower priority is paused for it"
                                                   : " of lower priorities are paused for it");
  } else if (obstacles.reserved_in) {
    absl::StrAppend(&text, "; ", need.workers, need.workers == 1 ? " is" : " are",
                    " reserved for it ",
                    *obstacles.reserved_in < kUnknownSeconds ? InAbout(*obstacles.reserved_in)
                                                             : "at a time that is not known yet");
  }
  return text;
}

std::string WhyOverQuota(const WaitingJob& job, int quota, int held) {
  return absl::StrCat("needs ", Wanted(job.need), ": ",
                      job.owner.empty() ? "an unnamed owner" : job.owner, " may hold ", quota,
                      " at once and holds ", held);
}

}  // namespace takt::placement
