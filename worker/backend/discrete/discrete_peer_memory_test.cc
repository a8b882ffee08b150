// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "gmock/gmock.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/backend/peer_memory.h"

namespace takt::backend {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kRegionBytes = std::size_t{1} << 20;
constexpr std::size_t kFloats = 1000;

class Node {
 public:
  PeerMemory& peers() { return *device_->peer_memory(); }
  MemoryBackend& backend() { return *backend_; }
  Buffer Allocate(std::size_t bytes = kFloats * sizeof(float)) {
    return backend_->Allocate(bytes, MemoryKind::kMessages).value();
  }
  void Fill(const Buffer& buffer, float value) {
    const std::vector<float> values(kFloats, value);
    EXPECT_TRUE(backend_->CopyFromHost(std::as_bytes(std::span(values)), buffer.data()).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
  }
  std::vector<float> Read(const Buffer& buffer) {
    std::vector<float> values(kFloats);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
    EXPECT_TRUE(backend_->CopyToHost(buffer.data(), bytes).ok());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return values;
  }

 private:
  const std::unique_ptr<BackendFactory> device_ =
      CreateDiscreteBackends({.lazy = true, .shared_bytes = kRegionBytes});
  const std::unique_ptr<MemoryBackend> backend_ =
      device_->CreateMemory(StreamKind::kTransfer).value();
};

TEST(DiscretePeerMemory, AnotherDeviceCopiesWhatIsThere) {
  Node owner, reader;
  const Buffer unused = owner.Allocate(), source = owner.Allocate(), target = reader.Allocate();
  owner.Fill(source, 7);
  const std::vector<SharedRegion> regions = owner.peers().Share().value();
  ASSERT_EQ(regions.size(), 1u);
  EXPECT_EQ(regions[0].bytes, kRegionBytes);
  EXPECT_LE(regions[0].handle.size(), kMostHandleBytes);
  const std::byte* const opened = reader.peers().Open(regions[0].handle).value();
  const std::byte* const from = opened + (source.data() - regions[0].base);
  ASSERT_TRUE(
      reader.peers().Copy(from, {target.data(), target.bytes()}, *reader.backend().stream()).ok());
  EXPECT_THAT(reader.Read(target), Each(7));
  reader.peers().Close(opened);
  EXPECT_EQ(
      reader.peers().Copy(from, {target.data(), target.bytes()}, *reader.backend().stream()).code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(DiscretePeerMemory, RefusesAHandleThatOpensNothing) {
  Node reader;
  EXPECT_EQ(reader.peers().Open("/proc/self/fd/9999").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(DiscretePeerMemory, AFullRegionIsRefusedWithWhatIsLeft) {
  Node node;
  const Buffer most = node.Allocate(kRegionBytes - 4096);
  const auto refused = node.backend().Allocate(4097, MemoryKind::kMessages);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("4096 left"));
}

TEST(DiscretePeerMemory, ADeviceWithoutARegionHasNone) {
  EXPECT_EQ(CreateDiscreteBackends({})->peer_memory(), nullptr);
}

}  // namespace
}  // namespace takt::backend
