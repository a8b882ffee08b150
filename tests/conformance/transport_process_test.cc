// SPDX-License-Identifier: Apache-2.0
// Transports whose ranks may be processes, with a peer that is killed or stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/conformance/transport_kinds.h"
#include "tests/testing/file_rendezvous.h"

namespace takt::conformance {
namespace {

using transport::MessageTag;

constexpr std::size_t kBytes = 3 * 1024 * 1024 + 1;
// Past an operation's deadline there is only scheduling.
constexpr absl::Duration kSlack = absl::Seconds(5);
// Of an operation whose peer is gone; round trips before that must fit in it, too.
constexpr absl::Duration kTimeout = absl::Seconds(1);

// Shared memory objects are plain files; directories there are other tests' scratch space, and
// other programs' names do not say takt.
std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (absl::StrContains(name, "takt") && !entry.is_directory()) names.insert(name);
  }
  return names;
}

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// Rank 0 here, rank 1 in a process of its own.
class TransportProcessTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    names_before_ = SharedMemoryNames();
    descriptors_before_ = OpenDescriptors();
    std::string directory = ::testing::TempDir() + "/takt-transport-XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }
  void TearDown() override {
    there_.reset();
    back_.reset();
    transport_.reset();
    if (peer_ > 0) Kill();
    std::filesystem::remove_all(directory_);
    EXPECT_EQ(SharedMemoryNames(), names_before_);
    EXPECT_EQ(OpenDescriptors(), descriptors_before_);
  }

  void Start(absl::Duration operation_timeout) {
    rendezvous_ = std::make_unique<testing::FileRendezvous>(directory_);
    const std::string program = TRANSPORT_PEER;
    const std::string kind = GetParam(), bytes = absl::StrCat(kBytes);
    std::string arguments[] = {program, kind, directory_, bytes};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), nullptr};
    ASSERT_EQ(posix_spawn(&peer_, program.c_str(), nullptr, nullptr, argv, environ), 0);
    transport::TransportOptions options = LoopbackOptions(0);
    options.operation_timeout = operation_timeout;
    auto transport = MakeTransport(kind, options, *rendezvous_);
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    auto there = transport_->OpenSend(Rank(1), "there", kBytes);
    ASSERT_TRUE(there.ok()) << there.status();
    there_ = *std::move(there);
    auto back = transport_->OpenRecv(Rank(1), "back", kBytes);
    ASSERT_TRUE(back.ok()) << back.status();
    back_ = *std::move(back);
  }

  // One message there and back.
  absl::Status RoundTrip(int i) {
    const MessageTag tag{.generation = 3, .microbatch = i};
    data_.assign(kBytes, static_cast<std::byte>(i + 1));
    if (absl::Status status = there_->Send(tag, data_); !status.ok()) return status;
    std::vector<std::byte> answer(kBytes);
    if (absl::Status status = back_->Recv(tag, answer); !status.ok()) return status;
    return answer == data_ ? absl::OkStatus() : absl::DataLossError("the answer differs");
  }

  // Round trips until one fails.
  absl::Status RunIntoTheFailure() {
    for (int i = next_;; ++i) {
      if (absl::Status status = RoundTrip(i); !status.ok()) return status;
    }
  }

  void Stop() { ASSERT_EQ(kill(peer_, SIGSTOP), 0); }
  void Kill() {
    ASSERT_EQ(kill(peer_, SIGKILL), 0);
    ASSERT_EQ(waitpid(peer_, nullptr, 0), peer_);
    peer_ = -1;
  }

  std::set<std::string> names_before_;
  std::size_t descriptors_before_ = 0;
  std::string directory_;
  std::unique_ptr<testing::FileRendezvous> rendezvous_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::SendChannel> there_;
  std::unique_ptr<transport::RecvChannel> back_;
  std::vector<std::byte> data_;
  pid_t peer_ = -1;
  int next_ = 0;
};

TEST_P(TransportProcessTest, MessagesPassBetweenProcesses) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Seconds(60)));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(RoundTrip(i).ok()) << i;
}

TEST_P(TransportProcessTest, AKilledPeerEndsOperationsByTheirTimeout) {
  ASSERT_NO_FATAL_FAILURE(Start(kTimeout));
  for (; next_ < 3; ++next_) ASSERT_TRUE(RoundTrip(next_).ok());
  Kill();
  const absl::Time start = absl::Now();
  const absl::Status status = RunIntoTheFailure();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(absl::Now() - start, kTimeout + kSlack);
}

TEST_P(TransportProcessTest, APeerKilledInTheMiddleOfTransfersEndsThemByTheirTimeout) {
  ASSERT_NO_FATAL_FAILURE(Start(kTimeout));
  for (; next_ < 3; ++next_) ASSERT_TRUE(RoundTrip(next_).ok());
  absl::Status status;
  std::thread traffic([&] { status = RunIntoTheFailure(); });
  Kill();
  const absl::Time killed = absl::Now();
  traffic.join();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(absl::Now() - killed, kTimeout + kSlack);
}

TEST_P(TransportProcessTest, AStoppedPeerEndsOperationsByTheirTimeout) {
  ASSERT_NO_FATAL_FAILURE(Start(kTimeout));
  for (; next_ < 3; ++next_) ASSERT_TRUE(RoundTrip(next_).ok());
  Stop();
  const absl::Time start = absl::Now();
  EXPECT_EQ(RunIntoTheFailure().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, kTimeout + kSlack);
}

TEST_P(TransportProcessTest, AbortEndsAWaitForAStoppedPeer) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Minutes(10)));
  for (; next_ < 3; ++next_) ASSERT_TRUE(RoundTrip(next_).ok());
  Stop();
  absl::Status status;
  std::thread traffic([&] { status = RunIntoTheFailure(); });
  const absl::Time start = absl::Now();
  transport_->Abort();
  traffic.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

INSTANTIATE_TEST_SUITE_P(All, TransportProcessTest,
                         ::testing::Values("shm", "tcp", "gloo", "auto", "ipc"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace takt::conformance
