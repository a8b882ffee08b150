// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "absl/synchronization/notification.h"

namespace takt::daemon {
namespace {

// The service manager's end, which is a datagram socket that NOTIFY_SOCKET names.
class ManagerSocket {
 public:
  ManagerSocket() {
    sockaddr_un address{.sun_family = AF_UNIX};
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    unlink(path_.c_str());
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~ManagerSocket() {
    unsetenv("NOTIFY_SOCKET");
    close(socket_);
    unlink(path_.c_str());
  }
  std::string Next() const {
    char message[256];
    const ssize_t size = recv(socket_, message, sizeof(message), 0);
    return size < 0 ? "" : std::string(message, size);
  }

 private:
  const std::string path_ = testing::TempDir() + "takt-notify-" + std::to_string(getpid());
  int socket_ = -1;
};

TEST(ServiceManagerTest, IsToldOfReadinessAndOfTheEnd) {
  const ManagerSocket manager;
  NotifyReady("serves on a:1");
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=serves on a:1");
  NotifyStopping("asked to");
  EXPECT_EQ(manager.Next(), "STOPPING=1\nSTATUS=asked to");
}

TEST(ServiceManagerTest, WithoutOneThereIsNobodyToTell) {
  NotifyReady("nobody hears");
  EXPECT_EQ(WatchdogTimeout(), absl::InfiniteDuration());
}

TEST(WatchdogTest, FeedsForAsLongAsAnswersCome) {
  absl::Mutex mutex;
  int fed = 0;
  const Watchdog watchdog(
      absl::Milliseconds(3), [](const std::function<void()>& answer) { answer(); },
      [&] {
        absl::MutexLock lock(&mutex);
        ++fed;
      });
  absl::MutexLock lock(&mutex);
  const auto enough = [&] { return fed >= 5; };
  mutex.Await(absl::Condition(&enough));
}

TEST(WatchdogTest, StarvesWhenTheThreadThatDecidesHangs) {
  std::vector<std::function<void()>> held;  // answers that do not come
  int fed = 0;
  {
    absl::Notification asked;
    const Watchdog watchdog(
        absl::Milliseconds(3),
        [&](std::function<void()> answer) {
          held.push_back(std::move(answer));
          asked.Notify();  // a second question would end the test here
        },
        [&] { ++fed; });
    asked.WaitForNotification();
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(fed, 1);  // the start counts as an answer
  held.at(0)();       // it is late, and nobody waits for it any more
}

}  // namespace
}  // namespace takt::daemon
