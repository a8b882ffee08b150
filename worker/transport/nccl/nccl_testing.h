// SPDX-License-Identifier: Apache-2.0
// The ranks of one test, each with a simulated device and the fake NCCL.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/testing/inproc_hub.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/transport/nccl/fake_nccl.h"
#include "worker/transport/nccl/nccl_transport.h"
#include "worker/transport/staged/staged.h"

namespace takt::transport::nccl {

// This is small, so that sums need several rounds.
inline constexpr std::size_t kTestScratchBytes = std::size_t{64} << 10;

// What all ranks share.
struct TestWorld {
  testing::InprocHub hub;
  testing::MapRendezvous rendezvous;
};

class TestRank {
 public:
  struct Options {
    int num_ranks = 2;
    bool has_nccl = true;
    bool required = false;
    std::string gpu;  // empty: one of its own
    bool lazy = false;
    absl::Duration connect_timeout = absl::Seconds(30), operation_timeout = absl::Seconds(60);
  };
  TestRank(TestWorld& world, int rank, const Options& options)
      : device(backend::CreateDiscreteBackends({.lazy = options.lazy})),
        backend(device->CreateCompute().value()) {
    const TransportOptions transport_options{.rank = Rank(rank),
                                             .num_ranks = options.num_ranks,
                                             .job = "test",
                                             .connect_timeout = options.connect_timeout,
                                             .operation_timeout = options.operation_timeout};
    host = world.hub.Connect(transport_options);
    Library library;
    if (options.has_nccl) {
      library = {
          .api = &FakeNccl::api(),
          .device_index = rank,
          .presence = {.version = FakeNccl::kVersion,
                       .device = options.gpu.empty() ? absl::StrCat("GPU-", rank) : options.gpu}};
    }
    transport =
        CreateNcclTransport({.transport = transport_options,
                             .library = library,
                             .required = options.required,
                             .sum_scratch_bytes = kTestScratchBytes,
                             .on_aborted =
                                 [ending = ending](const absl::Status& reason, bool stuck) {
                                   absl::MutexLock lock(&ending->mutex);
                                   ending->reason = reason;
                                   ending->stuck = stuck;
                                   ending->told = true;
                                 }},
                            world.rendezvous, *host, StageTransport(*host, *device), *device)
            .value();
  }

  backend::Buffer Allocate(std::size_t floats) {
    return backend->Allocate(floats * sizeof(float), MemoryKind::kMessages).value();
  }
  void Write(const backend::Buffer& buffer, std::span<const float> values) {
    EXPECT_TRUE(backend->CopyFromHost(std::as_bytes(values), buffer.data()).ok());
    EXPECT_TRUE(backend->Synchronize().ok());
  }
  std::vector<float> Read(const backend::Buffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    EXPECT_TRUE(backend->CopyToHost(buffer.data(), std::as_writable_bytes(std::span(values))).ok());
    EXPECT_TRUE(backend->Synchronize().ok());
    return values;
  }

  // Says how NCCL ended here, once it did.
  struct Ending {
    absl::Mutex mutex;
    bool told = false, stuck = false;
    absl::Status reason;
  };
  std::pair<absl::Status, bool> AwaitEnding() {
    absl::MutexLock lock(&ending->mutex);
    ending->mutex.Await(absl::Condition(&ending->told));
    return {ending->reason, ending->stuck};
  }

  const std::unique_ptr<backend::BackendFactory> device;
  const std::unique_ptr<backend::Backend> backend;
  const std::shared_ptr<Ending> ending = std::make_shared<Ending>();
  std::unique_ptr<Transport> host;
  std::unique_ptr<DeviceTransport> transport;
};

inline std::span<std::byte> BytesOf(const backend::Buffer& buffer) {
  return {buffer.data(), buffer.bytes()};
}

// Waits until all work that was left on `stream` is done.
inline absl::Status Finish(backend::Stream& stream) {
  const std::unique_ptr<backend::Event> event = stream.CreateEvent().value();
  absl::Status status = stream.Record(*event);
  status.Update(event->Wait());
  return status;
}

// Runs each function on a thread of its own.
inline void AtOnce(const std::vector<std::function<void()>>& functions) {
  std::vector<std::jthread> threads;
  for (const auto& f : functions) threads.emplace_back(f);
}

}  // namespace takt::transport::nccl
