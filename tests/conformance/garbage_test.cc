// SPDX-License-Identifier: Apache-2.0
// A peer, or the coordinator, gives the rendezvous values that no program of ours gives. Opening a
// channel ends with an error that does not blame the rank that reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/time/time.h"
#include "tests/conformance/transport_kinds.h"
#include "worker/transport/shm/shared_memory.h"

namespace takt::conformance {
namespace {

using ::testing::AnyOf;
using transport::TransportOptions;

// Has the same value under every key.
class GarbageRendezvous final : public transport::Rendezvous {
 public:
  explicit GarbageRendezvous(std::string value) : value_(std::move(value)) {}
  absl::Status Set(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Wait(const std::string&, absl::Duration) override { return value_; }

 private:
  const std::string value_;
};

std::string Token() { return std::string(64, 'a'); }

// kind, rank that reads
class GarbageTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  // Opens both ends of a channel where every key has `value`, and returns what came of the sender
  // and of the receiver.
  static std::pair<absl::Status, absl::Status> Open(const std::string& value) {
    const auto& [kind, rank] = GetParam();
    TransportOptions options = LoopbackOptions(rank);
    options.connect_timeout = absl::Milliseconds(30);
    GarbageRendezvous rendezvous(value);
    const auto made = MakeTransport(kind, options, rendezvous);
    if (!made.ok()) return {made.status(), made.status()};
    const Rank peer(1 - rank);
    return {(*made)->OpenSend(peer, "F", 10).status(), (*made)->OpenRecv(peer, "B", 10).status()};
  }
};

TEST_P(GarbageTest, WhatCannotBeReadIsThePeersError) {
  const std::string values[] = {"",
                                ";",
                                ";;",
                                std::string(1, '\0'),
                                "\xff\xfe",
                                "shm",
                                "gloo",
                                "127.0.0.1",
                                "127.0.0.1:70000",
                                "somewhere:1",
                                "10 ff",
                                "1 2 3;zz",
                                "1 2;" + Token(),
                                "-1 -1 -1;" + Token(),
                                "99999999999999999999 0 1;" + Token(),
                                std::string(64 << 10, 'x')};
  for (const std::string& value : values) {
    const auto [sent, received] = Open(value);
    for (const absl::Status& status : {sent, received}) {
      EXPECT_THAT(status.code(),
                  AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded))
          << value.substr(0, 100) << ": " << status;
    }
  }
}

// A peer announces a ring, but the handle is that of another file of this process, or of none.
TEST_P(GarbageTest, MemoryThatIsNoRingIsNotUsed) {
  const auto memory = transport::CreateSharedMemory("not-a-ring", 1 << 16);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (const std::string& handle :
       {memory->handle, std::string("1 0 4096"), std::string("2147483647 0 4096")}) {
    const auto [sent, received] = Open(handle + ";" + Token());
    EXPECT_FALSE(sent.ok());
    EXPECT_FALSE(received.ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Each, GarbageTest,
                         ::testing::Combine(::testing::Values("shm", "tcp", "gloo", "auto"),
                                            ::testing::Values(0, 1)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_rank" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace takt::conformance
