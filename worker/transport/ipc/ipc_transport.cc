// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/ipc/ipc_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/transport/handshake.h"
#include "worker/transport/ipc/channel.h"
#include "worker/transport/message_header.h"

namespace takt::transport::ipc {
namespace {

using backend::Buffer;
using backend::MemoryBackend;
using backend::SharedRegion;
using backend::StreamKind;

// The MessageTag::direction of what the ends of a channel say when they open it.
constexpr std::int32_t kOpening = 29;

// A device has one region unless its memory was predicted too small.
constexpr std::size_t kMostRegions = 8;

// A text of at most so many bytes, with zeros behind it.
template <std::size_t n>
using Field = std::array<char, n + 1>;

template <std::size_t n>
void Write(absl::string_view text, std::array<char, n>& field) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), n - 1));
}

template <std::size_t n>
std::string Read(const std::array<char, n>& field) {
  return {field.data(), strnlen(field.data(), n - 1)};
}

// The first message of a sender. Without regions the channel goes another way.
struct Hello {
  struct Region {
    std::uint64_t bytes = 0;
    Field<backend::kMostHandleBytes> handle = {};
  };
  std::uint64_t max_bytes = 0;
  std::uint64_t num_regions = 0;
  std::array<Region, kMostRegions> regions = {};
  Field<backend::kMostHandleBytes> lease = {};
  Place probe;  // where `nonce` lies in the memory of the sender's device
  Nonce nonce = {};
  Field<254> why_not = {};
};

// The receiver's answer: empty where it reads the sender's memory, else why not.
struct Answer {
  Field<254> why_not = {};
};
static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Answer>);

template <class T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}
template <class T>
std::span<std::byte> BytesOf(T& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

// Waits until the backend's stream has done all that it was given, or `aborted`.
absl::Status Finish(MemoryBackend& backend, const std::atomic<bool>& aborted) {
  ASSIGN_OR_RETURN(const auto done, backend.stream()->CreateEvent());
  RETURN_IF_ERROR(backend.stream()->Record(*done));
  return done->WaitUnless([&aborted] { return aborted.load(); });
}

// A few bytes in the memory of the sender's device, for the receiver to find.
struct Probe {
  std::unique_ptr<MemoryBackend> backend;
  Buffer device;
};

class IpcTransport final : public DeviceTransport {
 public:
  IpcTransport(IpcTransportOptions options, Transport& host, std::unique_ptr<DeviceTransport> other,
               backend::BackendFactory& backends)
      : options_(std::move(options)), host_(host), other_(std::move(other)), backends_(backends) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    SenderOptions options{.name = absl::StrCat(name, " to rank ", peer.value()),
                          .max_bytes = max_bytes,
                          .close_timeout = options_.close_timeout,
                          .on_stuck = options_.on_stuck};
    ASSIGN_OR_RETURN(options.places, host_.OpenSend(peer, PlacesOf(name), sizeof(Hello)));
    ASSIGN_OR_RETURN(options.taken, host_.OpenRecv(peer, TakenOf(name), sizeof(Answer)));
    ASSIGN_OR_RETURN(options.lender, Lender::Create("takt-lease"));
    Hello hello{.max_bytes = max_bytes};
    Probe probe;
    if (absl::Status status = Announce(options, probe, hello); !status.ok())
      Write(status.message(), hello.why_not);
    auto sender = std::make_unique<IpcSender>(std::move(options));  // takes the memory back
    RETURN_IF_ERROR(sender->places().Send(OpeningTag(), BytesOf(std::as_const(hello))));
    Answer answer;
    RETURN_IF_ERROR(sender->taken().Recv(OpeningTag(), BytesOf(answer)));
    sender->lender().Watch();
    const std::string why_not = Read(answer.why_not);
    Tell(peer, name, why_not);
    if (!why_not.empty()) return other_->OpenSend(peer, name, max_bytes);
    return sender;
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ReceiverOptions options{.name = absl::StrCat(name, " from rank ", peer.value()),
                            .aborted = &aborted_};
    ASSIGN_OR_RETURN(options.places, host_.OpenRecv(peer, PlacesOf(name), sizeof(Hello)));
    ASSIGN_OR_RETURN(options.taken, host_.OpenSend(peer, TakenOf(name), sizeof(Answer)));
    Hello hello;
    RETURN_IF_ERROR(options.places->Recv(OpeningTag(), BytesOf(hello)));
    if (hello.max_bytes != max_bytes)
      return DifferentSizes(ChannelKey(peer, self(), name), max_bytes, hello.max_bytes);
    Answer answer;
    if (absl::Status status = Open(hello, options); !status.ok()) {
      options.memory = nullptr;
      Write(status.message(), answer.why_not);
    }
    RETURN_IF_ERROR(options.taken->Send(OpeningTag(), BytesOf(std::as_const(answer))));
    Tell(peer, name, Read(answer.why_not));
    if (options.memory == nullptr) return other_->OpenRecv(peer, name, max_bytes);
    return CreateIpcReceiver(std::move(options));
  }

  absl::StatusOr<std::unique_ptr<Collective>> OpenSums(const CollectiveOptions& group) override {
    return other_->OpenSums(group);
  }

  void Abort() override {
    aborted_ = true;
    host_.Abort();
    other_->Abort();
  }

  absl::Status status() const override { return other_->status(); }
  bool waits_in_kernels() const override { return other_->waits_in_kernels(); }
  absl::Status poisoned() const override { return other_->poisoned(); }

 private:
  static std::string PlacesOf(const std::string& name) { return absl::StrCat(name, "/places"); }
  static std::string TakenOf(const std::string& name) { return absl::StrCat(name, "/taken"); }
  Rank self() const { return options_.transport.rank; }
  MessageTag OpeningTag() const {
    return {.generation = options_.transport.generation, .direction = kOpening};
  }

  // Fills in `hello` and what the sender needs, and leaves a nonce in `probe`.
  // Errors: why this device's memory cannot be opened by others.
  absl::Status Announce(SenderOptions& options, Probe& probe, Hello& hello) {
    backend::PeerMemory* const peers = backends_.peer_memory();
    if (peers == nullptr) return NoPeerMemory();
    hello.nonce = RandomNonce();
    ASSIGN_OR_RETURN(probe.backend, backends_.CreateMemory(StreamKind::kTransfer));
    ASSIGN_OR_RETURN(probe.device,
                     probe.backend->Allocate(hello.nonce.size(), MemoryKind::kMessages));
    RETURN_IF_ERROR(probe.backend->CopyFromHost(hello.nonce, probe.device.data()));
    RETURN_IF_ERROR(Finish(*probe.backend, aborted_));
    ASSIGN_OR_RETURN(options.regions, peers->Share());
    if (options.regions.size() > kMostRegions) {
      return absl::FailedPreconditionError(absl::StrCat("its memory lies in ",
                                                        options.regions.size(), " regions, and ",
                                                        kMostRegions, " can be announced"));
    }
    hello.probe.bytes = hello.nonce.size();
    for (std::size_t i = 0; i < options.regions.size(); ++i) {
      const SharedRegion& region = options.regions[i];
      hello.regions[i].bytes = region.bytes;
      Write(region.handle, hello.regions[i].handle);
      const std::ptrdiff_t offset = probe.device.data() - region.base;
      if (offset < 0 || static_cast<std::size_t>(offset) >= region.bytes) continue;
      hello.probe.region = i;
      hello.probe.offset = static_cast<std::uint64_t>(offset);
    }
    Write(options.lender->announcement(), hello.lease);
    hello.num_regions = options.regions.size();
    return absl::OkStatus();
  }

  // Opens what `hello` announces and reads the probe.  Errors: why that cannot be.
  absl::Status Open(const Hello& hello, ReceiverOptions& options) {
    if (hello.num_regions == 0 || hello.num_regions > kMostRegions) {
      return absl::FailedPreconditionError(
          absl::StrCat("the sender shares no memory: ", Read(hello.why_not)));
    }
    backend::PeerMemory* const peers = backends_.peer_memory();
    if (peers == nullptr) return NoPeerMemory();
    ASSIGN_OR_RETURN(std::unique_ptr<Borrower> lease, Borrower::Attach(Read(hello.lease)));
    options.memory = std::make_unique<OpenedMemory>(*peers, std::move(lease));
    for (std::size_t i = 0; i < hello.num_regions; ++i)
      RETURN_IF_ERROR(options.memory->Open(Read(hello.regions[i].handle), hello.regions[i].bytes));
    ASSIGN_OR_RETURN(options.backend, backends_.CreateMemory(StreamKind::kTransfer));
    MemoryBackend& backend = *options.backend;
    ASSIGN_OR_RETURN(const Buffer probe,
                     backend.Allocate(hello.nonce.size(), MemoryKind::kMessages));
    Nonce found = {};
    RETURN_IF_ERROR(backend.stream()->MakeRoom(1));
    RETURN_IF_ERROR(options.memory->Copy(hello.probe, probe.data(), *backend.stream()));
    RETURN_IF_ERROR(backend.CopyToHost(probe.data(), found));
    if (absl::Status status = Finish(backend, aborted_); !status.ok()) {
      backend.Synchronize().IgnoreError();  // `found` is still written to
      return status;
    }
    if (found == hello.nonce) return absl::OkStatus();
    return absl::DataLossError("a copy between the two devices changes bytes");
  }

  static absl::Status NoPeerMemory() {
    return absl::FailedPreconditionError("the memory of one device cannot be shared");
  }

  // why_not: empty: the channel copies.
  void Tell(Rank peer, const std::string& name, const std::string& why_not) const {
    Log(LogLevel::kInfo,
        why_not.empty() ? "copies between devices" : "does not copy between devices",
        {{"job", options_.transport.job},
         {"rank", std::to_string(self().value())},
         {"peer", std::to_string(peer.value())},
         {"channel", name},
         {"reason", why_not}});
  }

  const IpcTransportOptions options_;
  Transport& host_;
  const std::unique_ptr<DeviceTransport> other_;
  backend::BackendFactory& backends_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

std::unique_ptr<DeviceTransport> CreateIpcTransport(IpcTransportOptions options, Transport& host,
                                                    std::unique_ptr<DeviceTransport> other,
                                                    backend::BackendFactory& backends) {
  return std::make_unique<IpcTransport>(std::move(options), host, std::move(other), backends);
}

}  // namespace takt::transport::ipc
