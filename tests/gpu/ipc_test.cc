// SPDX-License-Identifier: Apache-2.0
// Copies between the memory of two processes that share a GPU.
//   gpu_ipc_test --rank RANK DIRECTORY      one of the two, which meet in DIRECTORY
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/two_ranks.h"
#include "tests/testing/file_rendezvous.h"
#include "tests/testing/no_other_way.h"
#include "worker/transport/ipc/ipc_transport.h"
#include "worker/transport/selection/create.h"

namespace takt::transport::ipc {
namespace {

constexpr std::size_t kFloats = std::size_t{1} << 22, kBytes = kFloats * sizeof(float);
constexpr int kMessages = 10;

std::vector<float> Counted(int first) {
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  return values;
}

absl::Status Write(backend::MemoryBackend& backend, const backend::Buffer& buffer, int first) {
  const std::vector<float> values = Counted(first);
  RETURN_IF_ERROR(backend.CopyFromHost(std::as_bytes(std::span(values)), buffer.data()));
  return backend.Synchronize();
}

absl::Status Check(backend::MemoryBackend& backend, const backend::Buffer& buffer, int first) {
  std::vector<float> values(kFloats);
  RETURN_IF_ERROR(backend.CopyToHost(buffer.data(), std::as_writable_bytes(std::span(values))));
  RETURN_IF_ERROR(backend.Synchronize());
  return values == Counted(first) ? absl::OkStatus() : absl::DataLossError("other values came");
}

// Messages in turns. Then rank 1 ends without closing anything, as if it were killed.
absl::Status RunRank(int rank, const std::string& directory) {
  ASSIGN_OR_RETURN(const auto device, gpu::OpenGpu());
  takt::testing::FileRendezvous rendezvous(directory);
  const TransportOptions options{.rank = Rank(rank),
                                 .num_ranks = 2,
                                 .job = "gpu",
                                 .secret = std::string(32, 's'),
                                 .data_address = "127.0.0.1",
                                 .operation_timeout = absl::Seconds(10)};
  ASSIGN_OR_RETURN(const auto host,
                   CreateTransport(options, config::TransportKind::kCudaIpc, rendezvous));
  std::string stuck;
  const auto transport = CreateIpcTransport(
      {.transport = options, .on_stuck = [&stuck](const std::string& reason) { stuck = reason; }},
      *host, std::make_unique<takt::testing::NoOtherWay>(), *device);
  ASSIGN_OR_RETURN(const auto backend, device->CreateMemory(backend::StreamKind::kCompute));
  ASSIGN_OR_RETURN(const backend::Buffer mine, backend->Allocate(kBytes, MemoryKind::kMessages));
  ASSIGN_OR_RETURN(const backend::Buffer theirs, backend->Allocate(kBytes, MemoryKind::kMessages));
  const Rank peer(1 - rank);
  std::unique_ptr<SendChannel> out;
  std::unique_ptr<RecvChannel> in;
  for (const int sender : {0, 1}) {
    if (sender == rank) {
      ASSIGN_OR_RETURN(out, transport->OpenSend(peer, "F", kBytes));
    } else {
      ASSIGN_OR_RETURN(in, transport->OpenRecv(peer, "F", kBytes));
    }
  }
  ASSIGN_OR_RETURN(const auto arrived, in->stream()->CreateEvent());
  const auto send = [&](int m) -> absl::Status {
    RETURN_IF_ERROR(Write(*backend, mine, 2 * m + rank));
    return out->Send({.microbatch = m}, {mine.data(), kBytes});
  };
  const auto receive = [&](int m) -> absl::Status {
    RETURN_IF_ERROR(in->Recv({.microbatch = m}, {theirs.data(), kBytes}));
    RETURN_IF_ERROR(in->stream()->Record(*arrived));
    RETURN_IF_ERROR(backend->stream()->Await(*arrived));
    return Check(*backend, theirs, 2 * m + 1 - rank);
  };
  for (int m = 0; m < kMessages; ++m) {
    RETURN_IF_ERROR(rank == 0 ? send(m) : receive(m));
    RETURN_IF_ERROR(rank == 0 ? receive(m) : send(m));
  }
  if (rank == 1) _exit(0);
  const absl::Status left = receive(kMessages);
  if (left.ok()) return absl::InternalError("a message came from nobody");
  in = nullptr;
  out = nullptr;
  if (!stuck.empty()) return absl::InternalError(stuck);
  RETURN_IF_ERROR(device->status());
  RETURN_IF_ERROR(Write(*backend, theirs, 7));
  return Check(*backend, theirs, 7);
}

TEST(CudaIpc, TwoProcessesCopyFromEachOtherAndOneEnds) {
  {
    const auto device = gpu::OpenGpu();
    TAKT_SKIP_WITHOUT(device);
  }
  gpu::RunTwoRanks("takt-ipc");
}

}  // namespace
}  // namespace takt::transport::ipc

int main(int argc, char** argv) {
  return takt::gpu::MainWithRanks(argc, argv, takt::transport::ipc::RunRank);
}
