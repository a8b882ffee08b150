// SPDX-License-Identifier: Apache-2.0
// Measures messages between two processes: shared memory beside memcpy, and Gloo beside a bare Gloo
// loop.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
// Our transport over TCP is compared with it.
#include "gloo/transport/context.h"
#include "gloo/transport/tcp/device.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_group.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "worker/transport/selection/create.h"
#include "worker/transport/wake_word.h"

namespace takt::bench::transport_command {

namespace {

using transport::MonotonicNanos;

struct Options : CommonOptions {
  std::vector<std::string> transports = {"shm", "tcp"};
  std::vector<std::size_t> sizes = {4096, 256 * 1024, 3 * 1024 * 1024};
  int messages = 1000;
};

// Returns half of the median round trip in seconds, by rank 0's clock. send, recv: move one message
// of this rank.
struct Ends {
  std::function<absl::Status()> send, recv;
};
absl::StatusOr<double> PingPong(Rank rank, int messages, const Ends& ends) {
  std::vector<double> seconds;
  for (int i = 0; i < messages; ++i) {
    const std::int64_t start = MonotonicNanos();
    RETURN_IF_ERROR(rank == Rank(0) ? ends.send() : ends.recv());
    RETURN_IF_ERROR(rank == Rank(0) ? ends.recv() : ends.send());
    if (i >= messages / 10)
      seconds.push_back(static_cast<double>(MonotonicNanos() - start) * 0.5e-9);
  }
  return Median(std::move(seconds));
}

absl::StatusOr<double> PingPongOurs(config::TransportKind kind, std::size_t size, int messages,
                                    Rank rank, transport::Rendezvous& rendezvous) {
  transport::TransportOptions options = LoopbackOptions(rank, 2);
  options.plain_sockets = true;
  ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                   transport::CreateTransport(options, kind, rendezvous));
  std::unique_ptr<transport::SendChannel> out;
  std::unique_ptr<transport::RecvChannel> in;
  const Rank peer(1 - rank.value());
  for (const bool sending : {rank == Rank(0), rank != Rank(0)}) {
    if (sending) {
      ASSIGN_OR_RETURN(out, transport->OpenSend(peer, "bench", size));
    } else {
      ASSIGN_OR_RETURN(in, transport->OpenRecv(peer, "bench", size));
    }
  }
  std::vector<std::byte> sent(size, std::byte{1}), received(size, std::byte{2});
  return PingPong(rank, messages,
                  {.send = [&] { return out->Send({}, sent); },
                   .recv = [&] { return in->Recv({}, received); }});
}

// Uses Gloo as its own examples do, with one buffer for each direction and one slot.
absl::StatusOr<double> PingPongBareGloo(std::size_t size, int messages, Rank rank,
                                        transport::Rendezvous& rendezvous) {
  const auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  const auto context = device->createContext(rank.value(), 2);
  context->setTimeout(std::chrono::seconds(30));
  const int peer = 1 - rank.value();
  auto& pair = context->createPair(peer);
  const std::vector<char> address = pair->address().bytes();
  RETURN_IF_ERROR(rendezvous.Set(absl::StrCat("bare/", rank.value()),
                                 std::string(address.begin(), address.end())));
  ASSIGN_OR_RETURN(const std::string there,
                   rendezvous.Wait(absl::StrCat("bare/", peer), absl::Seconds(30)));
  pair->connect(std::vector<char>(there.begin(), there.end()));
  std::vector<std::byte> sent(size, std::byte{1}), received(size, std::byte{2});
  const auto out = context->createUnboundBuffer(sent.data(), size);
  const auto in = context->createUnboundBuffer(received.data(), size);
  const absl::StatusOr<double> seconds = PingPong(rank, messages,
                                                  {.send =
                                                       [&] {
                                                         out->send(peer, 0);
                                                         out->waitSend();
                                                         return absl::OkStatus();
                                                       },
                                                   .recv =
                                                       [&] {
                                                         in->recv(peer, 0);
                                                         in->waitRecv();
                                                         return absl::OkStatus();
                                                       }});
  return seconds;
}

double MemcpySeconds(std::size_t size, int messages) {
  std::vector<std::byte> from(size, std::byte{1}), to(size, std::byte{2});
  std::vector<double> seconds;
  for (int i = 0; i < messages; ++i) {
    const std::int64_t start = MonotonicNanos();
    std::memcpy(to.data(), from.data(), size);
    // The compiler must not remove the copy.
    asm volatile("" ::"r"(to.data()) : "memory");
    if (i >= messages / 10) seconds.push_back(static_cast<double>(MonotonicNanos() - start) * 1e-9);
  }
  return Median(std::move(seconds));
}

using Measurement = std::function<absl::StatusOr<double>(Rank, transport::Rendezvous&)>;
absl::StatusOr<double> OnTwoProcesses(const Measurement& measure) {
  ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      RunProcesses(
          2, [&](Rank rank, transport::Rendezvous& rendezvous) -> absl::StatusOr<std::string> {
            ASSIGN_OR_RETURN(const double seconds, measure(rank, rendezvous));
            return absl::StrFormat("%.17g", seconds);
          }));
  return std::stod(texts[0]);
}

struct Row {
  std::string transport;
  std::size_t size = 0;
  double seconds = 0;       // one way
  double peer_seconds = 0;  // of memcpy or bare Gloo, for the same size
  std::string peer, rule;   // rule: empty if this size has none
  bool holds = true;
};

void Judge(Row& row) {
  if (row.transport == "tcp") {
    row.rule = "within 20 % of bare gloo";
    row.holds = row.seconds <= 1.2 * row.peer_seconds;
  } else if (row.size == 4096) {
    row.rule = "< 10 us";
    row.holds = row.seconds < 10e-6;
  } else if (row.size == 3 * 1024 * 1024) {
    row.rule = ">= 40 % of memcpy";
    row.holds = row.peer_seconds / row.seconds >= 0.40;
  }
}

// Where the kernel puts the two processes can double a figure. So link and peer take turns, and the
// best turn of each counts.
absl::StatusOr<Row> Measure(const std::string& transport, std::size_t size, int messages) {
  constexpr int kTurns = 5;
  const bool shm = transport == "shm";
  Row row{.transport = transport,
          .size = size,
          .seconds = 1e9,
          .peer_seconds = 1e9,
          .peer = shm ? "memcpy" : "bare gloo"};
  for (int turn = 0; turn < kTurns; ++turn) {
    ASSIGN_OR_RETURN(
        const double seconds, OnTwoProcesses([&](Rank rank, transport::Rendezvous& rendezvous) {
          return PingPongOurs(shm ? config::TransportKind::kShm : config::TransportKind::kTcp, size,
                              messages / kTurns, rank, rendezvous);
        }));
    row.seconds = std::min(row.seconds, seconds);
    double peer_seconds;
    if (shm) {
      peer_seconds = MemcpySeconds(size, messages / kTurns);
    } else {
      ASSIGN_OR_RETURN(peer_seconds,
                       OnTwoProcesses([&](Rank rank, transport::Rendezvous& rendezvous) {
                         return PingPongBareGloo(size, messages / kTurns, rank, rendezvous);
                       }));
    }
    row.peer_seconds = std::min(row.peer_seconds, peer_seconds);
  }
  Judge(row);
  return row;
}

nlohmann::json RowJson(const Row& row) {
  return {{"transport", row.transport},
          {"bytes", row.size},
          {"one_way_seconds", row.seconds},
          {"bytes_per_second", static_cast<double>(row.size) / row.seconds},
          {"peer", row.peer},
          {"peer_seconds", row.peer_seconds},
          {"speed_ratio", row.peer_seconds / row.seconds},
          {"rule", row.rule},
          {"holds", row.holds}};
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{"link", "transport", 5},
                               {"bytes", "bytes", 8},
                               {"one way us", "one_way_seconds", 0, 1, 1e6},
                               {"GB/s", "bytes_per_second", 7, 2, 1e-9},
                               {"peer", "peer", 9},
                               {"peer us", "peer_seconds", 0, 1, 1e6},
                               {"ratio", "speed_ratio", 6, 3},
                               {"rule", "rule", 16}});
  for (const std::string& transport : options.transports) {
    for (const std::size_t size : options.sizes) {
      ASSIGN_OR_RETURN(const Row row, Measure(transport, size, options.messages));
      table.Add(RowJson(row), row.holds ? "" : "MISSED");
    }
  }
  table.End({});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "transport",
      "Messages between two processes, beside memcpy and a bare Gloo loop",
      [](CLI::App& command, Options& options) {
        command.add_option("--transport", options.transports, "Links")
            ->delimiter(',')
            ->check(CLI::IsMember({"shm", "tcp"}));
        command.add_option("--bytes", options.sizes, "Message sizes")
            ->delimiter(',')
            ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30));
        command
            .add_option("--messages", options.messages, "Round trips of which the median is taken")
            ->check(CLI::Range(10, 10'000'000));
      },
      Run);
}

}  // namespace takt::bench::transport_command
