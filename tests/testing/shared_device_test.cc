// SPDX-License-Identifier: Apache-2.0
// Runs on a device that does nothing before the host waits for it.
#include "tests/testing/shared_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/testing/device_floats.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/discrete/discrete_backend.h"

namespace takt::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using transport::RecvChannel;
using transport::SendChannel;
using transport::Transport;

constexpr std::size_t kFloats = 1000;
constexpr std::size_t kBytes = kFloats * sizeof(float);

class SharedDeviceTest : public ::testing::Test {
 protected:
  struct Link {
    std::unique_ptr<SendChannel> send;
    std::unique_ptr<RecvChannel> recv;
  };

  std::unique_ptr<Transport> ConnectHost(int rank) {
    return hub_.Connect({.rank = Rank(rank), .num_ranks = 2});
  }

  Link Open() {
    Link link;
    std::thread sender([&] { link.send = rank0_->OpenSend(Rank(1), "F", kBytes).value(); });
    link.recv = rank1_->OpenRecv(Rank(0), "F", kBytes).value();
    sender.join();
    return link;
  }

  backend::Buffer Allocate() { return backend_->Allocate(kBytes, MemoryKind::kMessages).value(); }
  void Fill(const backend::Buffer& buffer, float value) { FillFloats(*backend_, buffer, value); }
  float First(const backend::Buffer& buffer) { return ReadFloats(*backend_, buffer).front(); }
  static absl::Status Drain(backend::Stream& stream) {
    const auto point = stream.CreateEvent().value();
    EXPECT_TRUE(stream.Record(*point).ok());
    return point->Wait();
  }
  static std::span<std::byte> BytesOf(const backend::Buffer& buffer) {
    return {buffer.data(), buffer.bytes()};
  }

  InprocHub hub_;
  const std::unique_ptr<backend::BackendFactory> backends_ =
      backend::CreateDiscreteBackends({.lazy = true});
  SharedDevice device_{*backends_};
  const std::unique_ptr<backend::Backend> backend_ = backends_->CreateCompute().value();
  const std::unique_ptr<Transport> host0_ = ConnectHost(0), host1_ = ConnectHost(1);
  const std::unique_ptr<Transport> rank0_ = device_.Connect(*host0_, Rank(0));
  const std::unique_ptr<Transport> rank1_ = device_.Connect(*host1_, Rank(1));
};

TEST_F(SharedDeviceTest, AMessageMayBeOverwrittenOnceTheSendersStreamIsPastIt) {
  Link link = Open();
  const backend::Buffer from = Allocate();
  const std::vector<backend::Buffer> to = [&] {
    std::vector<backend::Buffer> buffers;
    for (int m = 0; m < 4; ++m) buffers.push_back(Allocate());
    return buffers;
  }();
  std::thread sender([&] {
    for (int m = 0; m < 4; ++m) {
      Fill(from, static_cast<float>(1 + m));
      EXPECT_TRUE(link.send->Send({.microbatch = m}, BytesOf(from)).ok());
      EXPECT_TRUE(Drain(*link.send->stream()).ok());
    }
  });
  for (int m = 0; m < 4; ++m) EXPECT_TRUE(link.recv->Recv({.microbatch = m}, BytesOf(to[m])).ok());
  sender.join();
  EXPECT_TRUE(Drain(*link.recv->stream()).ok());
  for (int m = 0; m < 4; ++m) EXPECT_EQ(First(to[m]), static_cast<float>(1 + m));
}

TEST_F(SharedDeviceTest, AMessageOfAnotherSizeIsRefusedWithBothSizesNamed) {
  Link link = Open();
  const backend::Buffer from = Allocate(), to = Allocate();
  std::thread sender([&] { EXPECT_FALSE(link.send->Send({}, BytesOf(from)).ok()); });
  const absl::Status status = link.recv->Recv({}, BytesOf(to).first(400));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("4000 bytes"), HasSubstr("400 bytes")));
  rank0_->Abort();
  sender.join();
}

TEST_F(SharedDeviceTest, AnAbortEndsASendThatNobodyTakes) {
  Link link = Open();
  const backend::Buffer from = Allocate();
  std::thread aborting([&] { rank0_->Abort(); });
  EXPECT_EQ(link.send->Send({}, BytesOf(from)).code(), absl::StatusCode::kAborted);
  aborting.join();
}

TEST_F(SharedDeviceTest, MessagesAreWholeFloats) {
  EXPECT_EQ(rank0_->OpenSend(Rank(1), "F", 6).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace takt::testing
