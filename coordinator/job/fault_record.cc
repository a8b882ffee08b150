// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/fault_record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/bounded_text.h"
#include "common/base/log.h"

namespace takt::job {
namespace {

void KeepLast(std::vector<control::DoneInstruction>& recent, std::size_t most) {
  if (recent.size() > most)
    recent.erase(recent.begin(), recent.end() - static_cast<std::ptrdiff_t>(most));
}

void Cut(std::string& text) { text.resize(FirstBytes(text, kStatusTextBytes).size()); }

// "1F3@12 1B0@12": instruction and step, the last one last.
std::string RecentText(const std::vector<control::DoneInstruction>& recent) {
  return absl::StrJoin(recent, " ", [](std::string* out, const control::DoneInstruction& done) {
    absl::StrAppend(out, done.instruction, "@", done.step.value());
  });
}

}  // namespace

control::RankStatus ToKeep(control::RankStatus status, const control::BoundRank& bound,
                           absl::Time time) {
  status.rank = bound.rank;
  status.worker = bound.worker;
  status.time = time;
  Cut(status.instruction);
  Cut(status.waiting_for);
  KeepLast(status.recent, kRecentPerRank);
  for (control::DoneInstruction& done : status.recent) Cut(done.instruction);
  return status;
}

std::vector<control::RankStatus> FaultOf(const JobRun& run) {
  const std::size_t most = kRecentPerJob / std::max<std::size_t>(1, run.ranks.size());
  std::vector<control::RankStatus> fault;
  for (const RankRun& rank : run.ranks) {
    fault.push_back(rank.status);
    KeepLast(fault.back().recent, most);
  }
  return fault;
}

void LogFault(const std::string& job, Generation generation,
              std::vector<control::RankStatus> fault) {
  // The others wait for the ranks that wait for nothing.
  std::ranges::stable_sort(
      fault, {}, [](const control::RankStatus& status) { return !status.waiting_for.empty(); });
  if (fault.size() > kLoggedRanks) {
    Log(LogLevel::kWarning, "job at the fault",
        {{"job", job},
         {"generation", absl::StrCat(generation.value())},
         {"ranks", absl::StrCat(fault.size())},
         {"shown", absl::StrCat(kLoggedRanks)},
         {"all", absl::StrCat("takt job ", job)}});
    fault.resize(kLoggedRanks);
  }
  for (const control::RankStatus& status : fault) {
    Log(LogLevel::kWarning, "rank at the fault",
        {{"job", job},
         {"generation", absl::StrCat(generation.value())},
         {"rank", absl::StrCat(status.rank.value())},
         {"worker", status.worker},
         {"step", absl::StrCat(status.last_step.value())},
         {"instruction", status.instruction},
         {"instruction_step", absl::StrCat(status.instruction_step.value())},
         {"for_seconds", absl::StrFormat("%.3f", status.instruction_seconds)},
         {"waiting_for", status.waiting_for},
         {"recent", RecentText(status.recent)}});
  }
}

}  // namespace takt::job
