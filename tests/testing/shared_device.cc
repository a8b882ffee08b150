// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/shared_device.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/channel_collective.h"
#include "worker/transport/handshake.h"

namespace takt::testing {
namespace {

using backend::Event;
using backend::MemoryBackend;
using backend::StreamKind;
using transport::ChannelKey;
using transport::Collective;
using transport::CollectiveOptions;
using transport::CreateCollective;
using transport::DeviceTransport;
using transport::MessageTag;
using transport::RecvChannel;
using transport::SendChannel;
using transport::Transport;

// The MessageTag::direction of sums, beside those of collectives on the host.
constexpr std::int32_t kSharedSum = 19;

// The place of a message, or of one rank's part of a sum.
struct Place {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

std::span<const std::byte> BytesOf(const Place& place) {
  return std::as_bytes(std::span(&place, 1));
}

absl::StatusOr<Place> RecvPlace(RecvChannel& channel, const MessageTag& tag,
                                std::size_t expected_bytes) {
  Place place;
  RETURN_IF_ERROR(channel.Recv(tag, std::as_writable_bytes(std::span(&place, 1))));
  if (place.bytes == expected_bytes) return place;
  return absl::InternalError(absl::StrCat("a message of ", place.bytes, " bytes where one of ",
                                          expected_bytes, " bytes was expected"));
}

absl::Status CopyFloats(MemoryBackend& backend, const std::byte* from, std::byte* to,
                        std::size_t bytes) {
  return backend.Run(backend::Copy{.input = reinterpret_cast<const float*>(from),
                                   .output = reinterpret_cast<float*>(to),
                                   .count = static_cast<std::int64_t>(bytes / sizeof(float))});
}

// A channel of the host, and one for the answers.
struct SendPair {
  std::unique_ptr<SendChannel> places;
  std::unique_ptr<RecvChannel> taken;
};
struct RecvPair {
  std::unique_ptr<RecvChannel> places;
  std::unique_ptr<SendChannel> taken;
};

std::string AnswersOf(const std::string& name) { return absl::StrCat(name, "/taken"); }

absl::StatusOr<SendPair> OpenSendPair(Transport& host, Rank peer, const std::string& name) {
  SendPair pair;
  ASSIGN_OR_RETURN(pair.places, host.OpenSend(peer, name, sizeof(Place)));
  ASSIGN_OR_RETURN(pair.taken, host.OpenRecv(peer, AnswersOf(name), 0));
  return pair;
}

absl::StatusOr<RecvPair> OpenRecvPair(Transport& host, Rank peer, const std::string& name) {
  RecvPair pair;
  ASSIGN_OR_RETURN(pair.places, host.OpenRecv(peer, name, sizeof(Place)));
  ASSIGN_OR_RETURN(pair.taken, host.OpenSend(peer, AnswersOf(name), 0));
  return pair;
}

// A channel leaves nothing on its stream, because the work there waits for the other end's event.
class SharedSend final : public SendChannel {
 public:
  SharedSend(SendPair host, MemoryBackend& backend, Event& ready, Event& taken)
      : host_(std::move(host)), backend_(backend), ready_(ready), taken_(taken) {}
  ~SharedSend() override { backend_.Synchronize().IgnoreError(); }

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    RETURN_IF_ERROR(backend_.stream()->Record(ready_));
    // The receiver only reads it; the type is not const because sums use it, too.
    const Place place{const_cast<std::byte*>(data.data()), data.size()};
    RETURN_IF_ERROR(host_.places->Send(tag, BytesOf(place)));
    RETURN_IF_ERROR(host_.taken->Recv(tag, {}));
    return backend_.stream()->Await(taken_);
  }
  backend::Stream* stream() override { return backend_.stream(); }

 private:
  const SendPair host_;
  MemoryBackend& backend_;
  Event& ready_;  // ours
  Event& taken_;  // the receiver's
};

class SharedRecv final : public RecvChannel {
 public:
  SharedRecv(RecvPair host, MemoryBackend& backend, Event& taken, Event& ready)
      : host_(std::move(host)), backend_(backend), taken_(taken), ready_(ready) {}
  ~SharedRecv() override { backend_.Synchronize().IgnoreError(); }

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    ASSIGN_OR_RETURN(const Place place, RecvPlace(*host_.places, tag, data.size()));
    RETURN_IF_ERROR(backend_.stream()->Await(ready_));
    RETURN_IF_ERROR(CopyFloats(backend_, place.data, data.data(), place.bytes));
    RETURN_IF_ERROR(backend_.stream()->Record(taken_));
    return host_.taken->Send(tag, {});
  }
  backend::Stream* stream() override { return backend_.stream(); }

 private:
  const RecvPair host_;
  MemoryBackend& backend_;
  Event& taken_;  // ours
  Event& ready_;  // the sender's
};

// The first rank adds the others' memory to its own, in their order, and copies the sum to them.
class SharedSums final : public Collective {
 public:
  // Another rank of the group, as the first sees it.
  struct Other {
    RecvPair host;
    Event* ready = nullptr;
  };
  // ready: of this rank; summed: of the first one. first: nothing for the first rank, which alone
  // has `others`.
  SharedSums(std::unique_ptr<Collective> host, std::int64_t generation, MemoryBackend& backend,
             Event& ready, Event& summed, std::optional<SendPair> first, std::vector<Other> others)
      : host_(std::move(host)),
        generation_(generation),
        backend_(backend),
        ready_(ready),
        summed_(summed),
        first_(std::move(first)),
        others_(std::move(others)) {}
  ~SharedSums() override { backend_.Synchronize().IgnoreError(); }

  int size() const override { return host_->size(); }
  int index() const override { return host_->index(); }
  backend::Stream* stream() override { return backend_.stream(); }

  absl::Status AllReduceSum(StepId step, std::span<float> data) override {
    return AllReduceTerms(step, data, {});
  }
  // The terms of all ranks lie alike.
  absl::Status AllReduceTerms(StepId step, std::span<float> data, const Terms& terms) override {
    if (terms.in_turns > 1) return absl::UnimplementedError("ranks take no turns here");
    const MessageTag tag{.generation = generation_,
                         .step = step.value(),
                         .direction = kSharedSum,
                         .sequence = sequence_++};
    return first_.has_value() ? HandOver(tag, data) : Sum(tag, data, terms);
  }
  absl::Status AllReduceSum(StepId step, std::span<double> data) override {
    return host_->AllReduceSum(step, data);
  }

 private:
  absl::Status HandOver(const MessageTag& tag, std::span<float> data) {
    RETURN_IF_ERROR(backend_.stream()->Record(ready_));
    const Place place{reinterpret_cast<std::byte*>(data.data()), data.size_bytes()};
    RETURN_IF_ERROR(first_->places->Send(tag, BytesOf(place)));
    RETURN_IF_ERROR(first_->taken->Recv(tag, {}));
    return backend_.stream()->Await(summed_);
  }

  absl::Status Sum(const MessageTag& tag, std::span<float> data, const Terms& terms) {
    const auto add = [&](const float* a, const float* b, float* sum) {
      return backend_.Run(backend::Add{.a = a, .b = b, .output = sum, .count = std::ssize(data)});
    };
    float* const first = terms.Of(data.data(), 0);
    for (int term = 1; term < terms.count; ++term) {
      float* const own = terms.Of(data.data(), term);
      RETURN_IF_ERROR(add(first, own, term + 1 == terms.count ? own : first));
    }
    std::vector<Place> places;
    for (const Other& other : others_) {
      ASSIGN_OR_RETURN(places.emplace_back(),
                       RecvPlace(*other.host.places, tag, data.size_bytes()));
      RETURN_IF_ERROR(backend_.stream()->Await(*other.ready));
      const auto* const others = reinterpret_cast<const float*>(places.back().data);
      for (int term = 0; term < terms.count; ++term)
        RETURN_IF_ERROR(add(data.data(), terms.Of(others, term), data.data()));
    }
    for (const Place& place : places) {
      RETURN_IF_ERROR(CopyFloats(backend_, reinterpret_cast<const std::byte*>(data.data()),
                                 place.data, place.bytes));
    }
    RETURN_IF_ERROR(backend_.stream()->Record(summed_));
    for (const Other& other : others_) RETURN_IF_ERROR(other.host.taken->Send(tag, {}));
    return absl::OkStatus();
  }

  const std::unique_ptr<Collective> host_;
  const std::int64_t generation_;
  MemoryBackend& backend_;
  Event& ready_;                         // ours
  Event& summed_;                        // the first rank's
  const std::optional<SendPair> first_;  // nothing: this is the first rank
  const std::vector<Other> others_;      // in their order; only the first rank has them
  std::int32_t sequence_ = 0;
};

}  // namespace

class SharedDevice::SharedTransport final : public DeviceTransport {
 public:
  SharedTransport(SharedDevice& device, Transport& host, Rank rank)
      : device_(device), host_(host), rank_(rank) {}

  // Each end exists before its host channels do. So when those are open, the other end exists too.
  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    const std::string key = ChannelKey(rank_, peer, name);
    RETURN_IF_ERROR(CheckFloats(key, max_bytes));
    ASSIGN_OR_RETURN(End* const sender, device_.MakeEnd(key + "/send", StreamKind::kTransfer));
    ASSIGN_OR_RETURN(SendPair host, OpenSendPair(host_, peer, name));
    return std::make_unique<SharedSend>(std::move(host), *sender->backend, *sender->event,
                                        *device_.FindEnd(key + "/recv").event);
  }
  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    const std::string key = ChannelKey(peer, rank_, name);
    RETURN_IF_ERROR(CheckFloats(key, max_bytes));
    ASSIGN_OR_RETURN(End* const receiver, device_.MakeEnd(key + "/recv", StreamKind::kTransfer));
    ASSIGN_OR_RETURN(RecvPair host, OpenRecvPair(host_, peer, name));
    return std::make_unique<SharedRecv>(std::move(host), *receiver->backend, *receiver->event,
                                        *device_.FindEnd(key + "/send").event);
  }
  absl::StatusOr<std::unique_ptr<Collective>> OpenSums(const CollectiveOptions& group) override {
    const std::string name = absl::StrCat(group.name, "/shared");
    const auto key = [&](std::size_t index) {
      return absl::StrCat(name, "/", group.ranks[index].value());
    };
    const auto self = static_cast<std::size_t>(group.index);
    ASSIGN_OR_RETURN(End* const end, device_.MakeEnd(key(self), StreamKind::kReduce));
    ASSIGN_OR_RETURN(std::unique_ptr<Collective> host, CreateCollective(&host_, group));
    std::optional<SendPair> first;
    if (self > 0) {
      ASSIGN_OR_RETURN(first, OpenSendPair(host_, group.ranks.front(), name));
    }
    std::vector<SharedSums::Other> others;
    for (std::size_t i = 1; self == 0 && i < group.ranks.size(); ++i) {
      ASSIGN_OR_RETURN(RecvPair other, OpenRecvPair(host_, group.ranks[i], name));
      others.push_back({std::move(other), device_.FindEnd(key(i)).event.get()});
    }
    return std::make_unique<SharedSums>(std::move(host), group.generation, *end->backend,
                                        *end->event, *device_.FindEnd(key(0)).event,
                                        std::move(first), std::move(others));
  }

  void Abort() override { host_.Abort(); }

 private:
  static absl::Status CheckFloats(const std::string& channel, std::size_t bytes) {
    if (bytes % sizeof(float) == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("channel ", channel, ": messages of ", bytes, " bytes are no whole floats"));
  }

  SharedDevice& device_;
  Transport& host_;
  const Rank rank_;
};

SharedDevice::SharedDevice(backend::BackendFactory& backends) : backends_(backends) {
  TAKT_CHECK(!backends.memory_is_host());
}
SharedDevice::~SharedDevice() = default;

std::unique_ptr<DeviceTransport> SharedDevice::Connect(Transport& host, Rank rank) {
  return std::make_unique<SharedTransport>(*this, host, rank);
}

absl::StatusOr<SharedDevice::End*> SharedDevice::MakeEnd(const std::string& key, StreamKind kind) {
  End end;
  ASSIGN_OR_RETURN(end.backend, backends_.CreateMemory(kind));
  ASSIGN_OR_RETURN(end.event, end.backend->stream()->CreateEvent());
  std::lock_guard lock(mutex_);
  const auto [place, inserted] = ends_.try_emplace(key, std::move(end));
  TAKT_CHECK(inserted);
  return &place->second;
}

SharedDevice::End& SharedDevice::FindEnd(const std::string& key) {
  std::lock_guard lock(mutex_);
  return ends_.at(key);
}

}  // namespace takt::testing
