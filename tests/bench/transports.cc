// SPDX-License-Identifier: Apache-2.0
// Compares ways of passing messages over TCP between two processes of this machine: how long a
// message takes, how much CPU time it takes on each side, and how a rank ends whose peer dies.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/dead_peer.h"
#include "tests/bench/links.h"
#include "tests/bench/process_group.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "worker/transport/wake_word.h"

namespace takt::bench::transports_command {

namespace {

using transport::MonotonicNanos;

// Paced messages begin this far apart, so that the receiver sleeps before each of them.
constexpr std::int64_t kPeriodNanos = 4'000'000;
constexpr std::size_t kSmall = 4096, kLarge = 3 * 1024 * 1024;

struct Options : CommonOptions {
  std::vector<std::size_t> sizes = {kSmall, 256 * 1024, kLarge};
  std::vector<std::string> loads = {"idle", "busy"};
  std::vector<std::string> links;  // empty: all
  int messages = 300;
  int paced_messages = 100;
  int turns = 3;
};

// Keeps the cores busy while it lives, with one process for each core.
class BusyCores {
 public:
  explicit BusyCores(bool busy) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (!busy || sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
    for (int core = 0; core < CPU_COUNT(&cores); ++core) {
      const pid_t pid = fork();
      if (pid == 0) Compute();
      if (pid > 0) pids_.push_back(pid);
    }
  }
  ~BusyCores() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  BusyCores(const BusyCores&) = delete;

 private:
  [[noreturn]] static void Compute() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile double value = 1;;) value = value * 1.0000001;
  }

  std::vector<pid_t> pids_;
};

// Returns the CPU time of all threads of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Seconds of a message, as the ranks measure them.
struct Times {
  double one_way = 0;   // half a round trip, without a pause between
  double paced = 0;     // one way, if the receiver slept before
  double sender = 0;    // CPU time of the sender for a paced message
  double receiver = 0;  // the same of the receiver
};

absl::StatusOr<double> PingPong(Link& link, Rank rank, std::span<std::byte> data, int messages) {
  std::vector<double> seconds;
  for (int i = 0; i < messages; ++i) {
    const std::int64_t start = MonotonicNanos();
    RETURN_IF_ERROR(rank == Rank(0) ? link.Send(data) : link.Recv(data));
    RETURN_IF_ERROR(rank == Rank(0) ? link.Recv(data) : link.Send(data));
    if (i >= messages / 10)
      seconds.push_back(static_cast<double>(MonotonicNanos() - start) * 0.5e-9);
  }
  return Median(std::move(seconds));
}

// Calls `send` once in each period.
template <class Send>
absl::Status InEachPeriod(int messages, Send&& send) {
  const std::int64_t start = MonotonicNanos();
  for (int i = 0; i < messages; ++i) {
    absl::SleepFor(absl::Nanoseconds(start + i * kPeriodNanos - MonotonicNanos()));
    RETURN_IF_ERROR(send());
  }
  return absl::OkStatus();
}

// Returns the CPU time of a message. The time of waking up for it is measured separately and left
// out.
absl::StatusOr<double> SendPaced(Link& link, std::span<std::byte> data, int messages) {
  const double begin = CpuSeconds();
  RETURN_IF_ERROR(InEachPeriod(messages, [] { return absl::OkStatus(); }));
  const double middle = CpuSeconds();
  RETURN_IF_ERROR(InEachPeriod(messages, [&] {
    // The receiver is on this machine and reads the same clock.
    const std::int64_t now = MonotonicNanos();
    std::memcpy(data.data(), &now, sizeof(now));
    return link.Send(data);
  }));
  const double cpu = (CpuSeconds() - middle) - (middle - begin);
  return std::max(0.0, cpu / messages);
}

absl::Status ReceivePaced(Link& link, std::span<std::byte> data, int messages, Times& times) {
  std::vector<double> seconds;
  const double begin = CpuSeconds();
  for (int i = 0; i < messages; ++i) {
    RETURN_IF_ERROR(link.Recv(data));
    std::int64_t stamp = 0;
    std::memcpy(&stamp, data.data(), sizeof(stamp));
    seconds.push_back(static_cast<double>(MonotonicNanos() - stamp) * 1e-9);
  }
  times.receiver = (CpuSeconds() - begin) / messages;
  times.paced = Median(std::move(seconds));
  return absl::OkStatus();
}

absl::StatusOr<Times> RunRank(const LinkKind& kind, const Options& options, std::size_t size,
                              Rank rank, transport::Rendezvous& rendezvous) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Link> link, kind.make({.rank = rank,
                                                                .rendezvous = &rendezvous,
                                                                .max_bytes = size,
                                                                .timeout = absl::Seconds(30)}));
  std::vector<std::byte> data(size, std::byte{1});
  Times times;
  ASSIGN_OR_RETURN(times.one_way, PingPong(*link, rank, data, options.messages));
  if (rank == Rank(0)) {
    ASSIGN_OR_RETURN(times.sender, SendPaced(*link, data, options.paced_messages));
  } else {
    RETURN_IF_ERROR(ReceivePaced(*link, data, options.paced_messages, times));
  }
  // No rank leaves before all messages have arrived.
  RETURN_IF_ERROR(PingPong(*link, rank, std::span(data).first(1), 1).status());
  return times;
}

absl::StatusOr<Times> RunBoth(const LinkKind& kind, const Options& options, std::size_t size) {
  ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      RunProcesses(
          2, [&](Rank rank, transport::Rendezvous& rendezvous) -> absl::StatusOr<std::string> {
            ASSIGN_OR_RETURN(const Times times, RunRank(kind, options, size, rank, rendezvous));
            return absl::StrFormat("[%.17g, %.17g, %.17g, %.17g]", times.one_way, times.paced,
                                   times.sender, times.receiver);
          }));
  const auto sender = nlohmann::json::parse(texts[0]), receiver = nlohmann::json::parse(texts[1]);
  return Times{.one_way = sender[0].get<double>(),
               .paced = receiver[1].get<double>(),
               .sender = sender[2].get<double>(),
               .receiver = receiver[3].get<double>()};
}

// Keeps the best of each figure. The cores on which the kernel puts the two processes can double a
// figure.
void KeepBest(Times& best, const Times& times) {
  for (const auto member : {&Times::one_way, &Times::paced, &Times::sender, &Times::receiver})
    best.*member = std::min(best.*member, times.*member);
}

// Returns how many lines of code there are, without comments and tests.
int CountLines(const std::vector<std::string_view>& sources) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (const std::string_view source : sources) {
    const fs::path path = fs::path(TAKT_SOURCE_DIR) / source;
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      const std::string extension = entry.path().extension();
      const bool is_test = entry.path().stem().string().ends_with("_test");
      if ((extension == ".h" || extension == ".cc") && !is_test) files.push_back(entry.path());
    }
  }
  int count = 0;
  for (const fs::path& file : files) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      const std::size_t first = line.find_first_not_of(' ');
      if (first != std::string::npos && line.compare(first, 2, "//") != 0) ++count;
    }
  }
  return count;
}

// The rule for `tcp`, compared with the bare links under the same load.
struct Judgement {
  std::string rule;
  bool holds = true;
};
struct BareSeconds {
  double sockets = 0, best = 0;
};
Judgement Judge(std::size_t size, double seconds, const BareSeconds& bare) {
  if (size == kSmall) return {"<= 1.3 x sockets", seconds <= 1.3 * bare.sockets};
  if (size == kLarge) return {">= 70 % of the best bare", bare.best / seconds >= 0.70};
  return {};
}

class Comparison {
 public:
  Comparison(const Options& options, std::vector<LinkKind> kinds)
      : options_(options),
        kinds_(std::move(kinds)),
        table_(options.json(), {{"link", "link", 8},
                                {"cores", "cores", 5},
                                {"bytes", "bytes", 8},
                                {"one way us", "one_way_seconds", 0, 1, 1e6},
                                {"GB/s", "bytes_per_second", 6, 2, 1e-9},
                                {"paced us", "paced_seconds", 0, 1, 1e6},
                                {"sender us", "sender_cpu_seconds", 0, 1, 1e6},
                                {"receiver us", "receiver_cpu_seconds", 0, 1, 1e6},
                                {"x sockets", "over_sockets", 0, 2},
                                {"rule", "rule", 25}}) {}

  absl::Status AddRows(const std::string& load, std::size_t size) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    std::vector<Times> best(kinds_.size(), Times{kNone, kNone, kNone, kNone});
    {
      const BusyCores busy(load == "busy");
      for (int turn = 0; turn < options_.turns; ++turn) {
        for (std::size_t i = 0; i < kinds_.size(); ++i) {
          ASSIGN_OR_RETURN(const Times times, RunBoth(kinds_[i], options_, size));
          KeepBest(best[i], times);
        }
      }
    }
    BareSeconds bare{kNone, kNone};
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      if (kinds_[i].name == "sockets") bare.sockets = best[i].one_way;
      if (kinds_[i].is_bare) bare.best = std::min(bare.best, best[i].one_way);
    }
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const double seconds = best[i].one_way;
      const Judgement judgement =
          kinds_[i].name == "tcp" ? Judge(size, seconds, bare) : Judgement();
      table_.Add({{"link", std::string(kinds_[i].name)},
                  {"cores", load},
                  {"bytes", size},
                  {"one_way_seconds", seconds},
                  {"bytes_per_second", static_cast<double>(size) / seconds},
                  {"paced_seconds", best[i].paced},
                  {"sender_cpu_seconds", best[i].sender},
                  {"receiver_cpu_seconds", best[i].receiver},
                  {"over_sockets", seconds / bare.sockets},
                  {"rule", judgement.rule},
                  {"holds", judgement.holds}},
                 judgement.holds ? "" : "MISSED");
    }
    return absl::OkStatus();
  }

  void End(nlohmann::json object) { table_.End(std::move(object)); }

 private:
  const Options& options_;
  const std::vector<LinkKind> kinds_;
  Table table_;
};

// Prints how a rank ends whose peer dies, and how many lines of code each link has. For JSON it
// adds these to `rows`.
absl::Status LookAtDeaths(const Options& options, const std::vector<LinkKind>& kinds,
                          nlohmann::json& rows) {
  // In JSON the rows are part of the other table's object.
  Table table(options.json(), {{"link", "link", 8},
                               {"lines", "lines"},
                               {"waiting to receive", "receiving", 34},
                               {"in the middle of sends", "sending", 34}});
  if (!options.json()) absl::PrintF("\nThe peer is killed:\n");
  for (const LinkKind& kind : kinds) {
    nlohmann::json row = {{"link", std::string(kind.name)}, {"lines", CountLines(kind.sources)}};
    ASSIGN_OR_RETURN(row["receiving"], OutcomeOfDeath(kind, /*receiving=*/true));
    ASSIGN_OR_RETURN(row["sending"], OutcomeOfDeath(kind, /*receiving=*/false));
    table.Add(row);
    rows.push_back(std::move(row));
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  Links links = FindLinks();
  if (!options.links.empty()) {
    std::erase_if(links.kinds, [&](const LinkKind& kind) {
      // The others are compared with it.
      if (kind.name == "sockets") return false;
      return std::ranges::none_of(options.links,
                                  [&](const std::string& name) { return name == kind.name; });
    });
  }
  Comparison comparison(options, links.kinds);
  for (const std::string& load : options.loads) {
    for (const std::size_t size : options.sizes) RETURN_IF_ERROR(comparison.AddRows(load, size));
  }
  nlohmann::json deaths = nlohmann::json::array();
  RETURN_IF_ERROR(LookAtDeaths(options, links.kinds, deaths));
  nlohmann::json left_out = nlohmann::json::array();
  for (const Links::LeftOut& link : links.left_out) {
    left_out.push_back(nlohmann::json{{"link", link.name}, {"why", link.why}});
    if (!options.json()) absl::PrintF("left out: %s: %s\n", link.name, link.why);
  }
  comparison.End({{"dead_peers", std::move(deaths)}, {"left_out", std::move(left_out)}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "transports",
      "Ways of passing messages over TCP: latency, CPU time of both sides, and dead peers",
      [](CLI::App& command, Options& options) {
        command.add_option("--bytes", options.sizes, "Message sizes")
            ->delimiter(',')
            ->check(CLI::Range(std::size_t{8}, std::size_t{1} << 30));
        command.add_option("--cores", options.loads, "Whether other processes keep the cores busy")
            ->delimiter(',')
            ->check(CLI::IsMember({"idle", "busy"}));
        command
            .add_option("--links", options.links,
                        "Ways to compare with sockets, all if none is named")
            ->delimiter(',')
            ->check(CLI::IsMember({"gloo", "tcp", "epoll", "io_uring", "ucx"}));
        command.add_option("--messages", options.messages, "Round trips of a turn")
            ->check(CLI::Range(10, 10'000'000));
        command.add_option("--paced", options.paced_messages, "Paced messages of a turn")
            ->check(CLI::Range(10, 1'000'000));
        command.add_option("--turns", options.turns, "Turns of which the best counts")
            ->check(CLI::Range(1, 1000));
      },
      Run);
}

}  // namespace takt::bench::transports_command
