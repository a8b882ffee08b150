// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/dead_peer.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/bench/process_group.h"
#include "worker/transport/wake_word.h"

namespace takt::bench {

namespace {

using transport::MonotonicNanos;

constexpr std::size_t kSmall = 4096, kLarge = 3 * 1024 * 1024;
// The timeout of a link's own calls, and the time for which we wait for the rank.
constexpr absl::Duration kTimeout = absl::Seconds(3), kPatience = absl::Seconds(10);
// After this time the other rank waits.
constexpr absl::Duration kSettling = absl::Milliseconds(100);

// How the run ended. The two ranks write it into memory that they share with this process.
struct Ending {
  std::atomic<std::int64_t> death_nanos{0};
  std::atomic<std::int64_t> end_nanos{0};  // when the survivor's call returned
  std::atomic<int> code{-1};               // with this absl::StatusCode
};

// Returns once the peer has died, or after a timeout of the link.
absl::Status Survive(Link& link, bool receiving, std::vector<std::byte>& data) {
  absl::Status status = link.Send(std::span(data).first(kSmall));
  if (status.ok() && receiving) return link.Recv(data);
  while (status.ok()) status = link.Send(data);
  return status;
}

absl::Status Die(Link& link, bool receiving, std::vector<std::byte>& data, Ending& ending) {
  RETURN_IF_ERROR(link.Recv(std::span(data).first(kSmall)));
  if (!receiving) RETURN_IF_ERROR(link.Recv(data));
  absl::SleepFor(kSettling);
  ending.death_nanos = MonotonicNanos();
  raise(SIGKILL);
  return absl::InternalError("still alive");
}

// Runs one rank in this process and ends it. Destructors may wait for the peer, so none runs.
[[noreturn]] void Live(const LinkKind& kind, bool receiving, Rank rank,
                       transport::Rendezvous& rendezvous, Ending& ending) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const absl::StatusOr<std::unique_ptr<Link>> link = kind.make(
      {.rank = rank, .rendezvous = &rendezvous, .max_bytes = kLarge, .timeout = kTimeout});
  if (!link.ok()) _exit(1);
  std::vector<std::byte> data(kLarge, std::byte{1});
  if (rank != Rank(0)) {
    (void)Die(**link, receiving, data, ending);
    _exit(1);
  }
  const absl::Status status = Survive(**link, receiving, data);
  ending.end_nanos = MonotonicNanos();
  ending.code = static_cast<int>(status.code());
  _exit(0);
}

// Waits for the survivor. Returns its status as waitpid reports it, or -1 if it does not end.
int AwaitEnd(pid_t survivor) {
  const std::int64_t patience = MonotonicNanos() + absl::ToInt64Nanoseconds(kPatience);
  int status = 0;
  while (waitpid(survivor, &status, WNOHANG) == 0) {
    if (MonotonicNanos() >= patience) {
      kill(survivor, SIGKILL);
      waitpid(survivor, nullptr, 0);
      return -1;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return status;
}

std::string Describe(int status, const Ending& ending) {
  if (status == -1) return "still waits";
  if (ending.death_nanos == 0) return "failed before";
  const auto after = [&](std::int64_t end) {
    return absl::StrFormat(" after %.1f ms", static_cast<double>(end - ending.death_nanos) * 1e-6);
  };
  if (WIFSIGNALED(status))
    return absl::StrCat("signal ", WTERMSIG(status), after(MonotonicNanos()));
  if (ending.code < 0) return "failed before";
  return absl::StrCat(absl::StatusCodeToString(static_cast<absl::StatusCode>(ending.code.load())),
                      after(ending.end_nanos));
}

absl::StatusOr<std::string> Watch(const LinkKind& kind, bool receiving,
                                  transport::Rendezvous& rendezvous) {
  void* const memory =
      mmap(nullptr, sizeof(Ending), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("mmap");
  Ending& ending = *new (memory) Ending;
  pid_t pids[2];
  for (int rank = 0; rank < 2; ++rank) {
    pids[rank] = fork();
    if (pids[rank] == 0) Live(kind, receiving, Rank(rank), rendezvous, ending);
    if (pids[rank] < 0) return absl::ResourceExhaustedError("fork");
  }
  const int status = AwaitEnd(pids[0]);
  kill(pids[1], SIGKILL);
  waitpid(pids[1], nullptr, 0);
  return Describe(status, ending);
}

}  // namespace

absl::StatusOr<std::string> OutcomeOfDeath(const LinkKind& kind, bool receiving) {
  ASSIGN_OR_RETURN(const std::vector<std::string> outcomes,
                   RunProcesses(1, [&](Rank, transport::Rendezvous& rendezvous) {
                     return Watch(kind, receiving, rendezvous);
                   }));
  return outcomes[0];
}

}  // namespace takt::bench
