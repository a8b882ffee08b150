// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/process_group.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/testing/file_rendezvous.h"

namespace takt::bench {

namespace {

std::string ResultKey(int rank) { return absl::StrCat("result/", rank); }

[[noreturn]] void RunRank(int rank, const std::string& directory, const RankBody& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the rank ends when its parent does
  testing::FileRendezvous rendezvous(directory);
  const absl::StatusOr<std::string> result = body(Rank(rank), rendezvous);
  // The result is a letter, which tells success from failure, and the text.
  const std::string text = result.ok() ? *result : result.status().ToString();
  const absl::Status status =
      rendezvous.Set(ResultKey(rank), absl::StrCat(result.ok() ? "+" : "-", text));
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

absl::StatusOr<std::vector<std::string>> Collect(std::vector<pid_t>& pids,
                                                 const std::string& directory) {
  testing::FileRendezvous rendezvous(directory);
  std::vector<std::string> results(pids.size());
  for (std::size_t ended = 0; ended < pids.size(); ++ended) {
    const pid_t pid = wait(nullptr);
    for (std::size_t rank = 0; rank < pids.size(); ++rank) {
      if (pids[rank] != pid) continue;
      pids[rank] = -1;
      ASSIGN_OR_RETURN(results[rank],
                       rendezvous.Wait(ResultKey(static_cast<int>(rank)), absl::ZeroDuration()));
      if (results[rank].front() != '+') {
        return absl::InternalError(absl::StrCat("rank ", rank, ": ", results[rank].substr(1)));
      }
      results[rank].erase(0, 1);
    }
  }
  return results;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> RunProcesses(int num_ranks, const RankBody& body) {
  std::string directory = std::filesystem::temp_directory_path() / "takt-bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr)
    return absl::InternalError("cannot make a temporary directory");
  std::vector<pid_t> pids;
  std::fflush(nullptr);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) RunRank(rank, directory, body);
    if (pid > 0) pids.push_back(pid);
  }
  absl::StatusOr<std::vector<std::string>> results = Collect(pids, directory);
  for (const pid_t pid : pids) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  std::filesystem::remove_all(directory);
  return results;
}

transport::TransportOptions LoopbackOptions(Rank rank, int num_ranks) {
  return {.rank = rank,
          .num_ranks = num_ranks,
          .job = "bench",
          .generation = 1,
          .secret = "the ranks of one benchmark share this",
          .data_address = "127.0.0.1",
          .connect_timeout = absl::Seconds(30),
          .operation_timeout = absl::Minutes(1)};
}

}  // namespace takt::bench
