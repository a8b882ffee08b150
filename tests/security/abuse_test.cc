// SPDX-License-Identifier: Apache-2.0
// Ports that anybody reaches, and a job that trains meanwhile.
#include <sys/resource.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/security/http2.h"
#include "tests/security/processes.h"
#include "tests/testing/cluster.h"

namespace takt::security {
namespace {

using ::testing::AllOf;
using testing::Cluster;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::int64_t kComparedSteps = 400;
constexpr std::size_t kHundredMegabytes = 100 << 20;
// Of a process under all of this, in MiB: a silent connection to the coordinator takes 22 KiB, a
// stream that waits for its message 11 KiB (measured); the rest is what the allocator keeps.
constexpr double kMaxGrowthMib = 256;
constexpr double kMaxWorkerGrowthMib = 48;

std::string JobYaml(const std::string& name, std::int64_t steps) {
  return absl::StrCat(
      "name: ", name,
      "\nmodel: {family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 8, microbatch: 2}"
      "\noptimizer: {adamw: {learning_rate: 1.0e-3}}"
      "\nsteps: ",
      steps,
      "\nseed: 7\nparallelism: {threads: 1, pipeline: 2, schedule: 1f1b, transport: gloo}\n");
}

net::Socket Connect(const std::string& address) {
  const auto target = net::ParseSocketAddress(address);
  EXPECT_TRUE(target.ok()) << address;
  net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), target->get(), target->size), 0) << address;
  // Nobody here may wait for ever.
  const timeval patience{.tv_sec = 60};
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  return socket;
}

// False: the other end would not take all of it.
bool Say(const net::Socket& socket, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t now = send(socket.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += now;
  }
  return true;
}

std::string HearAll(const net::Socket& socket) {
  std::string text;
  std::vector<char> bytes(1 << 16);
  for (ssize_t n; (n = recv(socket.fd(), bytes.data(), bytes.size(), 0)) > 0;)
    text.append(bytes.data(), n);
  return text;
}

std::string Garbage(std::size_t size) {
  static std::mt19937 random(1);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class Abuse : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  std::vector<pid_t> Workers() {
    return {cluster_.worker("w0").pid(), cluster_.worker("w1").pid()};
  }
  std::vector<double> Losses(const std::string& job) {
    std::vector<double> losses;
    for (const v1::StepReport& step : cluster_.Steps(job)) losses.push_back(step.loss());
    losses.resize(kComparedSteps);
    return losses;
  }
  // What listens for others than the coordinator's clients: pages and the data port.
  std::vector<std::string> Ports() {
    std::vector<std::string> ports;
    for (const pid_t pid : {cluster_.coordinator().pid(), Workers()[0], Workers()[1]})
      for (const std::string& address : ListeningAddresses(pid)) ports.push_back(address);
    return ports;
  }
  static void ExpectScrape(const std::string& address) {
    const net::Socket socket = Connect(address);
    EXPECT_TRUE(Say(socket, "GET /metrics HTTP/1.1\r\n\r\n"));
    EXPECT_THAT(HearAll(socket), HasSubstr("takt_build_info"));
  }
  // Each of them still does what it is there for.
  void ExpectAllServe() {
    EXPECT_EQ(cluster_.Workers().size(), 2u);
    for (const std::string& address : Ports()) {
      if (address.starts_with("127.0.0.3:")) ExpectScrape(address);
      if (address.starts_with("127.0.0.2:")) {
        char byte;
        EXPECT_EQ(recv(Connect(address).fd(), &byte, 1, 0), 1) << "no challenge at " << address;
      }
    }
  }

  Cluster cluster_{2, Cluster::Network::kTcp};
};

TEST_F(Abuse, OfEveryPortLeavesTheJobTheMemoryAndTheNextComerAlone) {
  cluster_.Submit(JobYaml("undisturbed", kComparedSteps));
  ASSERT_EQ(cluster_.AwaitEnd("undisturbed").state(), v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit(JobYaml("disturbed", 1'000'000));
  cluster_.AwaitStep("disturbed", 1);

  const pid_t coordinator = cluster_.coordinator().pid();
  const double coordinator_mib = ResidentMib(coordinator);
  std::vector<double> worker_mib;
  for (const pid_t pid : Workers()) worker_mib.push_back(ResidentMib(pid));
  const int descriptors = CountDescriptors(coordinator);
  // Control, three pages, and the data port of the lower rank.
  const std::vector<std::string> ports = Ports();
  ASSERT_EQ(ports.size(), 5u);

  for (const std::string& port : ports) {
    SCOPED_TRACE(port);
    {
      std::vector<net::Socket> silent;
      for (int i = 0; i < 1000; ++i) silent.push_back(Connect(port));
      ExpectAllServe();
    }
    for (int i = 0; i < 20; ++i) Say(Connect(port), Garbage(4096));
    const net::Socket endless = Connect(port);
    const std::string piece = Garbage(1 << 20);
    std::size_t taken = 0;
    while (taken < kHundredMegabytes && Say(endless, piece)) taken += piece.size();
    EXPECT_LT(taken, kHundredMegabytes) << "nobody reads a hundred megabytes of a stranger";
  }
  {
    const std::string method = "/takt.v1.JobService/WatchJob";
    std::vector<net::Socket> connections;
    for (int i = 0; i < 10; ++i) {
      connections.push_back(Connect(cluster_.address()));
      std::string calls = Hello();
      for (std::uint32_t stream = 1; stream < 2000; stream += 2) calls += OpenCall(stream, method);
      EXPECT_TRUE(Say(connections.back(), calls));
    }
    ExpectAllServe();
    // A message of which its first bytes say that it has a hundred megabytes.
    const net::Socket large = Connect(cluster_.address());
    Say(large, Hello() + OpenCall(1, "/takt.v1.JobService/SubmitJob") +
                   Data(1, std::string("\0\x06\x40\0\0", 5)));
    const std::string piece = Data(1, std::string(16 << 10, 'x'));
    for (std::size_t sent = 0; sent < kHundredMegabytes && Say(large, piece);) sent += piece.size();
    ExpectAllServe();
  }

  EXPECT_LT(ResidentMib(coordinator), coordinator_mib + kMaxGrowthMib);
  for (std::size_t i = 0; i < worker_mib.size(); ++i)
    EXPECT_LT(ResidentMib(Workers()[i]), worker_mib[i] + kMaxWorkerGrowthMib);
  EXPECT_LT(CountDescriptors(coordinator), descriptors + 50);
  RecordProperty("coordinator_mib",
                 absl::StrCat(coordinator_mib, " -> ", ResidentMib(coordinator)));

  cluster_.AwaitStep("disturbed", kComparedSteps);
  EXPECT_EQ(cluster_.Job("disturbed").generation(), 1);
  cluster_.Cancel("disturbed");
  cluster_.AwaitEnd("disturbed");
  EXPECT_EQ(Losses("disturbed"), Losses("undisturbed"));
  cluster_.AwaitIdle({"w0", "w1"});
  EXPECT_THAT(cluster_.StopAll(), IsEmpty());
}

TEST_F(Abuse, FindsNothingListeningThatWasNotConfigured) {
  cluster_.Submit(JobYaml("gloo", 1'000'000));
  cluster_.AwaitStep("gloo", 1);
  EXPECT_THAT(ListeningAddresses(cluster_.coordinator().pid()),
              ElementsAre(cluster_.address(), StartsWith("127.0.0.3:")));
  // Of two ranks the lower one listens for the other.
  const std::string lower = cluster_.Job("gloo").ranks(0).worker();
  const std::string higher = cluster_.Job("gloo").ranks(1).worker();
  EXPECT_THAT(ListeningAddresses(cluster_.worker(lower).pid()),
              ElementsAre(StartsWith("127.0.0.2:"), StartsWith("127.0.0.3:")));
  EXPECT_THAT(ListeningAddresses(cluster_.worker(higher).pid()),
              ElementsAre(StartsWith("127.0.0.3:")));
  cluster_.Cancel("gloo");
  cluster_.AwaitIdle({"w0", "w1"});
  EXPECT_THAT(ListeningAddresses(cluster_.worker(lower).pid()),
              ElementsAre(StartsWith("127.0.0.3:")));
}

}  // namespace
}  // namespace takt::security
