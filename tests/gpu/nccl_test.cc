// SPDX-License-Identifier: Apache-2.0
// NCCL on one GPU: a communicator of one rank, and two ranks where the library allows that.
//   gpu_nccl_test --rank RANK DIRECTORY      one of two ranks, which meet in DIRECTORY
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/two_ranks.h"
#include "tests/testing/file_rendezvous.h"
#include "worker/plugin/loader.h"
#include "worker/transport/nccl/communicators.h"
#include "worker/transport/nccl/nccl_transport.h"
#include "worker/transport/selection/create.h"

namespace takt::transport::nccl {
namespace {

constexpr std::size_t kFloats = 1 << 20;
// The first that takes two ranks on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE is 1.
constexpr int kFirstThatShares = 23003;

// The module's library, or why it cannot be used.
absl::StatusOr<const plugin::NcclEntry*> LoadLibrary() {
  return plugin::LoadNccl(plugin::ModuleDirectory());
}

// Device memory with values, on a backend of its own.
class Values {
 public:
  static absl::StatusOr<Values> Create(backend::BackendFactory& device) {
    Values values;
    ASSIGN_OR_RETURN(values.backend_, device.CreateMemory(backend::StreamKind::kTransfer));
    ASSIGN_OR_RETURN(values.buffer_,
                     values.backend_->Allocate(kFloats * sizeof(float), MemoryKind::kMessages));
    return values;
  }

  absl::Status Write(float first) {
    std::vector<float> host(kFloats);
    std::iota(host.begin(), host.end(), first);
    RETURN_IF_ERROR(backend_->CopyFromHost(std::as_bytes(std::span(host)), buffer_.data()));
    return backend_->Synchronize();
  }
  absl::StatusOr<std::vector<float>> Read() {
    std::vector<float> host(kFloats);
    RETURN_IF_ERROR(backend_->CopyToHost(buffer_.data(), std::as_writable_bytes(std::span(host))));
    RETURN_IF_ERROR(backend_->Synchronize());
    return host;
  }
  std::span<std::byte> bytes() const { return {buffer_.data(), buffer_.bytes()}; }
  std::span<float> floats() const { return buffer_.float_span(); }
  backend::MemoryBackend& backend() { return *backend_; }

 private:
  std::unique_ptr<backend::MemoryBackend> backend_;
  backend::Buffer buffer_;
};

std::vector<float> Counted(float first) {
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), first);
  return values;
}

class NcclOnOneGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = gpu::OpenGpu();
    TAKT_SKIP_WITHOUT(device_);
    const absl::StatusOr<const plugin::NcclEntry*> library = LoadLibrary();
    if (!library.ok()) GTEST_SKIP() << "no NCCL: " << library.status().message();
    library_ = *library;
  }

  absl::StatusOr<std::unique_ptr<backend::cuda::CudaDevice>> device_ =
      absl::UnavailableError("not opened");
  const plugin::NcclEntry* library_ = nullptr;
};

TEST_F(NcclOnOneGpu, ARankSendsToItselfInOneGroup) {
  const Api& api = *library_->api;
  Values from = Values::Create(**device_).value(), into = Values::Create(**device_).value();
  ASSERT_TRUE(from.Write(1).ok());
  Communicators communicators({.api = &api});
  UniqueId id;
  ASSERT_EQ(api.unique_id(&id), kSuccess);
  const auto self = communicators.Open({.name = "self", .num_ranks = 1, .rank = 0, .id = id});
  ASSERT_TRUE(self.ok()) << self.status();
  for (int i = 0; i < 3; ++i) {
    const absl::Status given = communicators.Give(
        **self, *into.backend().stream(),
        [&](Comm comm, NativeStream stream) {
          const Result sent = api.send(from.bytes().data(), from.bytes().size(), 0, comm, stream);
          if (sent != kSuccess && sent != kInProgress) return sent;
          return api.recv(into.bytes().data(), into.bytes().size(), 0, comm, stream);
        },
        /*first=*/i == 0);
    ASSERT_TRUE(given.ok()) << given;
  }
  EXPECT_EQ(into.Read().value(), Counted(1));
  EXPECT_TRUE(communicators.status().ok());
  Communicators::Forget(**self);
}

TEST_F(NcclOnOneGpu, AnAbortEndsWithinItsDeadline) {
  const Api& api = *library_->api;
  absl::Mutex mutex;
  bool ended = false, was_stuck = false;
  Communicators communicators({.api = &api, .on_aborted = [&](const absl::Status&, bool stuck) {
                                 absl::MutexLock lock(&mutex);
                                 ended = true;
                                 was_stuck = stuck;
                               }});
  UniqueId id;
  ASSERT_EQ(api.unique_id(&id), kSuccess);
  ASSERT_TRUE(communicators.Open({.name = "self", .num_ranks = 1, .rank = 0, .id = id}).ok());
  communicators.Abort(absl::AbortedError("told to"));
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(&ended));
  EXPECT_FALSE(was_stuck);
}

// A misuse that the library itself must refuse, and that aborts: a receive of nobody's send.
TEST_F(NcclOnOneGpu, AnErrorOfTheLibraryIsTold) {
  const Api& api = *library_->api;
  Values into = Values::Create(**device_).value();
  Communicators communicators({.api = &api});
  UniqueId id;
  ASSERT_EQ(api.unique_id(&id), kSuccess);
  const auto self = communicators.Open({.name = "self", .num_ranks = 1, .rank = 0, .id = id});
  ASSERT_TRUE(self.ok()) << self.status();
  const absl::Status given =
      communicators.Give(**self, *into.backend().stream(), [&](Comm comm, NativeStream stream) {
        return api.recv(into.bytes().data(), into.bytes().size(), 0, comm, stream);
      });
  EXPECT_EQ(given.code(), absl::StatusCode::kInternal) << given;
  Communicators::Forget(**self);
}

// One of two ranks on one GPU: messages there and back, and sums.
absl::Status RunRank(int rank, const std::string& directory) {
  ASSIGN_OR_RETURN(const auto device, gpu::OpenGpu());
  ASSIGN_OR_RETURN(const plugin::NcclEntry* const library, LoadLibrary());
  ASSIGN_OR_RETURN(const int version, library->library_version());
  takt::testing::FileRendezvous rendezvous(directory);
  const TransportOptions options{.rank = Rank(rank),
                                 .num_ranks = 2,
                                 .job = "gpu",
                                 .secret = std::string(32, 's'),
                                 .data_address = "127.0.0.1"};
  ASSIGN_OR_RETURN(const auto host,
                   CreateTransport(options, config::TransportKind::kNccl, rendezvous));
  const Library nccl{.api = library->api,
                     .presence = {.version = version, .device = "one", .shares_gpu = true}};
  DeviceTransportOptions device_options{
      .transport = options, .kind = config::TransportKind::kNccl, .nccl = &nccl};
  ASSIGN_OR_RETURN(const auto transport,
                   CreateDeviceTransport(std::move(device_options), rendezvous, *host, *device));
  const Rank peer(1 - rank);
  const std::size_t bytes = kFloats * sizeof(float);
  std::unique_ptr<SendChannel> out;
  std::unique_ptr<RecvChannel> in;
  for (const int sender : {0, 1}) {
    if (sender == rank) {
      ASSIGN_OR_RETURN(out, transport->OpenSend(peer, "F", bytes));
    } else {
      ASSIGN_OR_RETURN(in, transport->OpenRecv(peer, "F", bytes));
    }
  }
  ASSIGN_OR_RETURN(
      auto sums, transport->OpenSums({.name = "sums", .ranks = {Rank(0), Rank(1)}, .index = rank}));
  ASSIGN_OR_RETURN(Values mine, Values::Create(*device));
  ASSIGN_OR_RETURN(Values theirs, Values::Create(*device));
  RETURN_IF_ERROR(mine.Write(static_cast<float>(rank)));
  RETURN_IF_ERROR(in->Recv({}, theirs.bytes()));
  RETURN_IF_ERROR(out->Send({}, mine.bytes()));
  const auto finish = [](backend::Stream& stream) -> absl::Status {
    ASSIGN_OR_RETURN(const auto event, stream.CreateEvent());
    RETURN_IF_ERROR(stream.Record(*event));
    return event->Wait();
  };
  RETURN_IF_ERROR(finish(*in->stream()));
  RETURN_IF_ERROR(finish(*out->stream()));
  ASSIGN_OR_RETURN(const std::vector<float> received, theirs.Read());
  if (received != Counted(static_cast<float>(1 - rank))) return absl::DataLossError("message");
  RETURN_IF_ERROR(sums->AllReduceSum(StepId(1), mine.floats()));
  RETURN_IF_ERROR(finish(*sums->stream()));
  ASSIGN_OR_RETURN(const std::vector<float> summed, mine.Read());
  for (std::size_t i = 0; i < kFloats; ++i) {
    if (summed[i] != static_cast<float>(i) + static_cast<float>(i + 1))
      return absl::DataLossError(absl::StrCat("sum, element ", i));
  }
  // This is what split layers do: each rank sums one half, and then gets both.
  const std::span<float> halves[] = {mine.floats().first(kFloats / 2),
                                     mine.floats().last(kFloats / 2)};
  RETURN_IF_ERROR(sums->ReduceScatterTree(StepId(1), halves));
  RETURN_IF_ERROR(sums->AllGatherParts(StepId(1), halves));
  RETURN_IF_ERROR(finish(*sums->stream()));
  ASSIGN_OR_RETURN(const std::vector<float> gathered, mine.Read());
  for (std::size_t i = 0; i < kFloats; ++i) {
    if (gathered[i] != 2 * summed[i]) return absl::DataLossError(absl::StrCat("half, element ", i));
  }
  return transport->status();
}

TEST_F(NcclOnOneGpu, TwoRanksShareTheGpu) {
  const int version = library_->library_version().value_or(0);
  if (version < kFirstThatShares)
    GTEST_SKIP() << "NCCL " << VersionText(version) << " takes one rank on a GPU, 2.30.3 takes two";
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  setenv("NCCL_MAX_CTAS", "8", 1);
  gpu::RunTwoRanks("takt-nccl");
}

}  // namespace
}  // namespace takt::transport::nccl

int main(int argc, char** argv) {
  return takt::gpu::MainWithRanks(argc, argv, takt::transport::nccl::RunRank);
}
