// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace takt::testing {
namespace {

class ControlLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    listener_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = AddressOf("/back");
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    link_.emplace(directory_ + "/front", directory_ + "/back");
    front_ = FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un front = AddressOf("/front");
    ASSERT_EQ(connect(front_.get(), reinterpret_cast<const sockaddr*>(&front), sizeof(front)), 0);
    back_ = FileDescriptor(accept(listener_.get(), nullptr, nullptr));
    ASSERT_TRUE(back_.valid());
  }
  ~ControlLinkTest() override {
    link_.reset();
    std::filesystem::remove_all(directory_);
  }

  sockaddr_un AddressOf(const std::string& name) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (directory_ + name).copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  static void Send(const FileDescriptor& end, const std::string& text) {
    ASSERT_EQ(send(end.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Returns what comes first within `patience`, at most `bytes`. Empty: nothing, or the end.
  static std::string Receive(const FileDescriptor& end, std::size_t bytes,
                             absl::Duration patience = absl::Seconds(20)) {
    const timeval timeout = absl::ToTimeval(patience);
    setsockopt(end.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    std::string text(bytes, '\0');
    const ssize_t got = recv(end.get(), text.data(), bytes, MSG_WAITALL);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }

  std::string directory_ = (std::filesystem::temp_directory_path() / "takt-XXXXXX").string();
  FileDescriptor listener_, front_, back_;
  std::optional<ControlLink> link_;
};

TEST_F(ControlLinkTest, BytesPassBothWays) {
  Send(front_, "hello");
  EXPECT_EQ(Receive(back_, 5), "hello");
  const std::string large(1 << 20, 'x');
  std::thread sender([&] { Send(back_, large); });
  EXPECT_EQ(Receive(front_, large.size()), large);
  sender.join();
}

TEST_F(ControlLinkTest, OneWayMayBeCutAndWhatWaitedArrives) {
  link_->Shape({.up = false});
  Send(back_, "down");
  EXPECT_EQ(Receive(front_, 4), "down");
  Send(front_, "up");
  EXPECT_EQ(Receive(back_, 2, absl::Milliseconds(50)), "");
  link_->Heal();
  EXPECT_EQ(Receive(back_, 2), "up");
}

TEST_F(ControlLinkTest, ADelayIsOneOfEachWay) {
  link_->Shape({.delay = absl::Milliseconds(50)});
  const absl::Duration start = SteadyNow();
  Send(front_, "a");
  EXPECT_EQ(Receive(back_, 1), "a");
  Send(back_, "b");
  EXPECT_EQ(Receive(front_, 1), "b");
  EXPECT_GE(SteadyNow() - start, absl::Milliseconds(100));
}

TEST_F(ControlLinkTest, AThrottleHoldsForAllConnectionsTogether) {
  const sockaddr_un address = AddressOf("/front");
  const FileDescriptor front(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(front.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const FileDescriptor back(accept(listener_.get(), nullptr, nullptr));
  link_->Shape({.bytes_per_second = 100e3});
  const std::string text(10'000, 'x');
  const absl::Duration start = SteadyNow();
  Send(front_, text);
  Send(front, text);
  EXPECT_EQ(Receive(back_, text.size()), text);
  EXPECT_EQ(Receive(back, text.size()), text);
  EXPECT_GE(SteadyNow() - start, absl::Milliseconds(190));
}

TEST_F(ControlLinkTest, AnEndArrivesAfterTheLastBytes) {
  link_->Shape({.delay = absl::Milliseconds(20)});
  Send(front_, "last");
  front_ = FileDescriptor();
  EXPECT_EQ(Receive(back_, 5), "last");
}

TEST_F(ControlLinkTest, AResetBreaksConnections) {
  link_->Reset();
  EXPECT_EQ(Receive(front_, 1), "");
  EXPECT_EQ(Receive(back_, 1), "");
}

sockaddr_in TcpAddress(const std::string& host, const std::string& port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  EXPECT_EQ(inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
  return address;
}

TEST(DataLink, PassesTcpOnAndResetsIt) {
  DataLink link("127.0.8.1");
  // --data-address HOST --data-port PORT --data-advertise 127.0.0.1:PORT
  const std::vector<std::string> arguments = link.WorkerArguments();
  ASSERT_EQ(arguments.size(), 6u);
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in back = TcpAddress(arguments[1], arguments[3]);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&back), sizeof(back)), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  const FileDescriptor peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in front =
      TcpAddress("127.0.0.1", arguments[5].substr(arguments[5].rfind(':') + 1));
  ASSERT_EQ(connect(peer.get(), reinterpret_cast<const sockaddr*>(&front), sizeof(front)), 0);
  const FileDescriptor accepted(accept(listener.get(), nullptr, nullptr));
  ASSERT_EQ(send(peer.get(), "hello", 5, MSG_NOSIGNAL), 5);
  std::string heard(5, '\0');
  ASSERT_EQ(recv(accepted.get(), heard.data(), heard.size(), MSG_WAITALL), 5);
  EXPECT_EQ(heard, "hello");
  link.Reset();
  const ssize_t got = recv(accepted.get(), heard.data(), heard.size(), 0);
  const int error = errno;
  EXPECT_LT(got, 0);
  EXPECT_EQ(error, ECONNRESET);
}

}  // namespace
}  // namespace takt::testing
