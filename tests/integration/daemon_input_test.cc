// SPDX-License-Identifier: Apache-2.0
// What an operator may get wrong, and what a machine may: each daemon says what it is, with the
// exit status that tells a service manager whether to try again (1) or not (2).
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Arguments = std::vector<std::string>;

class DaemonInput : public ::testing::Test {
 protected:
  // Ends with `status` and says all of `words`.
  static void ExpectEnd(const std::string& program, const Arguments& arguments,
                        const std::string& status, const std::vector<std::string>& words) {
    Command daemon(program, arguments);
    EXPECT_EQ(daemon.Wait(), "exit status " + status) << daemon.err();
    for (const std::string& word : words)
      EXPECT_THAT(daemon.out() + daemon.err(), HasSubstr(word)) << program;
  }
  Arguments Coordinator(const Arguments& more) const {
    Arguments arguments = {"--settings", "", "--state", directory_.Path("state")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  const TestDirectory directory_;
};

TEST_F(DaemonInput, BrokenSettingsAreToldWithTheirPlace) {
  const std::string broken = directory_.Write("broken.yaml", "state: [unclosed\nlisten: x\n");
  const std::string unknown = directory_.Write("unknown.yaml", "listen_on: x\n");
  const std::string nested = directory_.Write("nested.yaml", "name: {first: w}\n");
  ExpectEnd("takt-coordinator", {"--settings", broken}, "2", {"broken.yaml:"});
  for (const std::string program : {"takt-coordinator", "takt-worker"})
    ExpectEnd(program, {"--settings", unknown}, "2", {"unknown.yaml:", "listen_on"});
  ExpectEnd("takt-worker", {"--settings", nested}, "2", {"nested.yaml:1:"});
  const std::string value = directory_.Write("value.yaml", "threads: 5000\n");
  ExpectEnd("takt-worker", {"--settings", value}, "2", {"value.yaml:1:10: threads is 5000: "});
  ExpectEnd("takt-worker", {"--settings", directory_.Path("absent.yaml")}, "2", {"absent.yaml"});
}

TEST_F(DaemonInput, APortInUseIsWorthAnotherTry) {
  const net::Socket taken = *net::ListenOn("127.0.0.1:0");
  const std::string address = net::ToString(*net::LocalAddress(taken));
  ExpectEnd("takt-coordinator", Coordinator({"--listen", address, "--insecure"}), "1",
            {"cannot listen on", address});
  ExpectEnd("takt-coordinator", Coordinator({"--metrics-listen", address}), "1",
            {"cannot serve metrics", address});
  ExpectEnd("takt-worker", {"--settings", "", "--metrics-listen", address}, "1",
            {"cannot serve metrics", address});
}

TEST_F(DaemonInput, AnAddressWithoutAHostIsNone) {
  ExpectEnd("takt-coordinator", Coordinator({"--metrics-listen", ":9464"}), "2",
            {"--metrics-listen", ":9464"});
  ExpectEnd("takt-worker", {"--settings", "", "--metrics-listen", "9464"}, "2",
            {"--metrics-listen", "9464"});
}

TEST_F(DaemonInput, AStateDirectoryThatCannotBeWrittenIsNamed) {
  const std::string file = directory_.Write("file", "");
  ExpectEnd("takt-coordinator", {"--settings", "", "--state", file + "/state"}, "1",
            {file + "/state"});
  ExpectEnd("takt-coordinator", {"--settings", "", "--state", "/proc/takt"}, "1", {"/proc/takt"});
}

TEST_F(DaemonInput, AStateInEtcdNeedsMembersAndCertificates) {
  ExpectEnd("takt-coordinator", Coordinator({"--store", "etcd"}), "2", {"--listen", "HOST:PORT"});
  ExpectEnd("takt-coordinator", Coordinator({"--etcd-endpoints", "h:2379"}), "2", {"--store etcd"});
  ExpectEnd("takt-coordinator", Coordinator({"--store", "etcd", "--etcd-prefix", "takt"}), "2",
            {"--etcd-prefix", "slash"});
}

// Datagrams as systemd gets them.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX};
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  std::string heard() {
    char bytes[4096];
    for (ssize_t n; (n = recv(socket_.fd(), bytes, sizeof(bytes), 0)) >= 0;)
      heard_.append(bytes, n).append("\n");
    return heard_;
  }

 private:
  const net::Socket socket_;
  std::string heard_;
};

TEST_F(DaemonInput, ACoordinatorThatDoesNotResolveIsWaitedFor) {
  NotifySocket systemd(directory_.Path("notify"));
  Command worker("takt-worker",
                 {"--settings", "", "--coordinator", "no-such-host.invalid:7070", "--insecure",
                  "--name", "w", "--metrics-listen", ""},
                 {"NOTIFY_SOCKET=" + directory_.Path("notify")});
  EXPECT_TRUE(worker.WaitForText("not attached; will try again")) << worker.err();
  EXPECT_THAT(worker.out() + worker.err(), HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(systemd.heard(), Not(HasSubstr("READY=1"))) << "it is starting";
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(), "exit status 0");
}

}  // namespace
}  // namespace takt::integration
