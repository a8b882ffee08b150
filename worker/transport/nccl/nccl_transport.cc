// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/nccl/nccl_transport.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/base/counted.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/channel_collective.h"
#include "worker/transport/handshake.h"
#include "worker/transport/message_header.h"
#include "worker/transport/nccl/communicators.h"

namespace takt::transport::nccl {
namespace {

using backend::MemoryBackend;
using backend::StreamKind;

// The kernels of all communicators of a rank may wait for peers at once. Together they must leave
// most multiprocessors to the work that the peers wait for. There are at most four channels and
// four groups: 40 of the 108 of an A100, or of the 132 of an H100.
constexpr int kChannelCtas = 2, kGroupCtas = 8;

constexpr int kSender = 0, kReceiver = 1;  // ranks in the communicator of a channel

// A message of this size is sent first, so that connections are made while all ranks open theirs.
constexpr std::size_t kFirstBytes = 256;

// One end of a channel. The other end gives the same messages, in the same order.
class NcclChannel {
 public:
  struct Options {
    Communicators* communicators = nullptr;
    const Api* api = nullptr;
    Communicator* communicator = nullptr;
    std::unique_ptr<MemoryBackend> backend;
    std::string name;  // "F to rank 1"
    std::size_t max_bytes = 0;
    int self = kSender;
  };
  explicit NcclChannel(Options options) : options_(std::move(options)) {}
  // Work on the stream uses our memory.
  ~NcclChannel() {
    options_.backend->Synchronize().IgnoreError();
    Communicators::Forget(*options_.communicator);
  }
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  absl::Status Connect() {
    ASSIGN_OR_RETURN(first_, options_.backend->Allocate(kFirstBytes, MemoryKind::kMessages));
    return Give(first_.data(), kFirstBytes, /*first=*/true);
  }

  absl::Status Pass(std::byte* data, std::size_t bytes) {
    RETURN_IF_ERROR(options_.communicators->status());
    RETURN_IF_ERROR(CheckFits(options_.name, bytes, options_.max_bytes));
    return bytes == 0 ? absl::OkStatus() : Give(data, bytes, /*first=*/false);
  }

  backend::Stream* stream() { return options_.backend->stream(); }

 private:
  absl::Status Give(std::byte* data, std::size_t bytes, bool first) {
    const Api& api = *options_.api;
    return options_.communicators->Give(
        *options_.communicator, *stream(),
        [&](Comm comm, NativeStream stream) {
          return options_.self == kSender ? api.send(data, bytes, kReceiver, comm, stream)
                                          : api.recv(data, bytes, kSender, comm, stream);
        },
        first);
  }

  const Options options_;
  backend::Buffer first_;
};

class NcclSend final : public SendChannel {
 public:
  explicit NcclSend(std::unique_ptr<NcclChannel> channel) : channel_(std::move(channel)) {}
  absl::Status Send(const MessageTag& /*tag*/, std::span<const std::byte> data) override {
    return channel_->Pass(const_cast<std::byte*>(data.data()), data.size());
  }
  backend::Stream* stream() override { return channel_->stream(); }

 private:
  const std::unique_ptr<NcclChannel> channel_;
};

class NcclRecv final : public RecvChannel {
 public:
  explicit NcclRecv(std::unique_ptr<NcclChannel> channel) : channel_(std::move(channel)) {}
  absl::Status Recv(const MessageTag& /*tag*/, std::span<std::byte> data) override {
    return channel_->Pass(data.data(), data.size());
  }
  backend::Stream* stream() override { return channel_->stream(); }

 private:
  const std::unique_ptr<NcclChannel> channel_;
};

class NcclTransport final : public DeviceTransport {
 public:
  NcclTransport(NcclTransportOptions options, Rendezvous& rendezvous, Transport& host,
                std::unique_ptr<DeviceTransport> other, backend::BackendFactory& backends)
      : options_(std::move(options)),
        rendezvous_(rendezvous),
        host_(host),
        other_(std::move(other)),
        backends_(backends) {
    const Library& library = options_.library;
    if (library.api == nullptr) return;
    communicators_ = std::make_unique<Communicators>(
        CommunicatorsOptions{.api = library.api,
                             .device = library.device_index,
                             .connect_timeout = options_.transport.connect_timeout,
                             .operation_timeout = options_.transport.operation_timeout,
                             .on_aborted = options_.on_aborted});
  }

  absl::Status Publish() {
    return rendezvous_.Set(PresenceKey(self()), ToText(options_.library.presence));
  }

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(const bool meets, Meets({self(), peer}));
    if (!meets) return other_->OpenSend(peer, name, max_bytes);
    ASSIGN_OR_RETURN(auto channel, OpenChannel(peer, name, max_bytes, kSender));
    return std::make_unique<NcclSend>(std::move(channel));
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(const bool meets, Meets({self(), peer}));
    if (!meets) return other_->OpenRecv(peer, name, max_bytes);
    ASSIGN_OR_RETURN(auto channel, OpenChannel(peer, name, max_bytes, kReceiver));
    return std::make_unique<NcclRecv>(std::move(channel));
  }

  absl::StatusOr<std::unique_ptr<Collective>> OpenSums(const CollectiveOptions& group) override {
    ASSIGN_OR_RETURN(const bool meets, Meets(group.ranks));
    if (!meets) return other_->OpenSums(group);
    DeviceSumsOptions sums{.communicators = communicators_.get(),
                           .api = options_.library.api,
                           .index = group.index,
                           .scratch_bytes = options_.sum_scratch_bytes};
    ASSIGN_OR_RETURN(sums.host, CreateCollective(&host_, group));
    ASSIGN_OR_RETURN(sums.backend, backends_.CreateMemory(StreamKind::kReduce));
    const auto size = static_cast<int>(group.ranks.size());
    ASSIGN_OR_RETURN(const UniqueId id, AgreeOnId(absl::StrCat("group/", group.name),
                                                  group.ranks.front(), sums.scratch_bytes));
    ASSIGN_OR_RETURN(sums.communicator,
                     communicators_->Open({.name = absl::StrCat("group ", group.name),
                                           .num_ranks = size,
                                           .rank = group.index,
                                           .id = id,
                                           .max_ctas = kGroupCtas}));
    return CreateDeviceSums(std::move(sums));
  }

  void Abort() override {
    abort_.Raise();
    if (communicators_ != nullptr) communicators_->Abort(AbortedStatus());
    other_->Abort();
  }

  absl::Status status() const override {
    return communicators_ == nullptr ? absl::OkStatus() : communicators_->status();
  }
  bool waits_in_kernels() const override {
    return options_.library.api != nullptr && options_.transport.num_ranks > 1;
  }
  absl::Status poisoned() const override {
    return communicators_ == nullptr ? absl::OkStatus() : communicators_->poisoned();
  }

 private:
  Rank self() const { return options_.transport.rank; }

  static std::string PresenceKey(Rank rank) { return absl::StrCat("nccl/rank/", rank.value()); }

  // Asks for what is not known yet of these ranks, all at once.
  absl::StatusOr<std::vector<Presence>> PresencesOf(const std::vector<Rank>& ranks) {
    std::vector<Rank> unknown;
    std::vector<std::string> keys;
    {
      absl::MutexLock lock(&mutex_);
      presences_[self()] = options_.library.presence;
      for (const Rank rank : ranks) {
        if (presences_.contains(rank)) continue;
        unknown.push_back(rank);
        keys.push_back(PresenceKey(rank));
      }
    }
    std::vector<std::string> texts;
    if (!keys.empty()) {
      const std::string others =
          keys.size() > 1 ? absl::StrCat(" and ", Counted(std::ssize(keys) - 1, "other")) : "";
      ASSIGN_OR_RETURN(
          texts,
          AwaitKeys(rendezvous_, keys, options_.transport.connect_timeout, abort_,
                    absl::StrCat("rank ", unknown.front().value(), others, " to say what NCCL ",
                                 others.empty() ? "it has" : "they have")));
    }
    absl::MutexLock lock(&mutex_);
    for (std::size_t i = 0; i < unknown.size(); ++i) {
      const absl::StatusOr<Presence> presence = ParsePresence(texts[i]);
      if (!presence.ok()) return UnreadableStatus(unknown[i], "its NCCL", texts[i]);
      presences_[unknown[i]] = *presence;
    }
    std::vector<Presence> presences;
    for (const Rank rank : ranks) presences.push_back(presences_.at(rank));
    return presences;
  }

  // Returns whether NCCL can join all of them. All of them come to the same answer.
  absl::StatusOr<bool> Meets(const std::vector<Rank>& ranks) {
    ASSIGN_OR_RETURN(const std::vector<Presence> presences, PresencesOf(ranks));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const absl::Status meet = CanMeet(presences[j], presences[i]);
        if (meet.ok()) continue;
        RETURN_IF_ERROR(Refuse(ranks[j], ranks[i], meet));
        return false;
      }
    }
    return true;
  }

  // Returns an error if no other way is allowed; else logs that another one is taken.
  absl::Status Refuse(Rank a, Rank b, const absl::Status& why) {
    const std::string reason = absl::StrCat("ranks ", a.value(), " and ", b.value(),
                                            " cannot meet in NCCL: ", why.message());
    if (options_.required) {
      return InvalidField({.field = "parallelism.transport",
                           .value = "nccl",
                           .rule = reason,
                           .fix = "use auto: such ranks exchange through the host"});
    }
    Log(LogLevel::kInfo, "exchanges through the host",
        {{"job", options_.transport.job},
         {"rank", std::to_string(self().value())},
         {"reason", reason}});
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<NcclChannel>> OpenChannel(Rank peer, const std::string& name,
                                                           std::size_t max_bytes, int end) {
    const bool sends = end == kSender;
    const std::string key = sends ? ChannelKey(self(), peer, name) : ChannelKey(peer, self(), name);
    NcclChannel::Options channel{
        .communicators = communicators_.get(),
        .api = options_.library.api,
        .name = absl::StrCat(name, sends ? " to rank " : " from rank ", peer.value()),
        .max_bytes = max_bytes,
        .self = end};
    ASSIGN_OR_RETURN(channel.backend, backends_.CreateMemory(StreamKind::kTransfer));
    ASSIGN_OR_RETURN(const UniqueId id, AgreeOnId(key, sends ? self() : peer, max_bytes));
    ASSIGN_OR_RETURN(channel.communicator,
                     communicators_->Open(
                         {.name = channel.name, .rank = end, .id = id, .max_ctas = kChannelCtas}));
    auto opened = std::make_unique<NcclChannel>(std::move(channel));
    RETURN_IF_ERROR(opened->Connect());
    return opened;
  }

  // Returns the id that `maker` makes for the others, who must want the same `bytes`.
  absl::StatusOr<UniqueId> AgreeOnId(const std::string& name, Rank maker, std::size_t bytes) {
    RETURN_IF_ERROR(communicators_->status());
    const std::string key = absl::StrCat("nccl/id/", name);
    UniqueId id;
    if (maker == self()) {
      if (const Result result = options_.library.api->unique_id(&id); result != kSuccess) {
        return absl::InternalError(
            absl::StrCat("ncclGetUniqueId: ", options_.library.api->error_string(result)));
      }
      RETURN_IF_ERROR(rendezvous_.Set(key, absl::StrCat(bytes, " ", ToHex(AsText(id.bytes)))));
      return id;
    }
    ASSIGN_OR_RETURN(const std::string text,
                     AwaitKey(rendezvous_, key, options_.transport.connect_timeout, abort_,
                              absl::StrCat("rank ", maker.value(), " to open channel ", name)));
    const absl::Status unreadable =
        UnreadableStatus(maker, absl::StrCat("the id of channel ", name), text);
    const std::vector<std::string> parts = absl::StrSplit(text, ' ');
    std::size_t their_bytes = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &their_bytes)) return unreadable;
    if (their_bytes != bytes) return DifferentSizes(name, bytes, their_bytes);
    const absl::StatusOr<std::string> raw = FromHex(parts[1]);
    if (!raw.ok() || raw->size() != id.bytes.size()) return unreadable;
    std::memcpy(id.bytes.data(), raw->data(), raw->size());
    return id;
  }

  const NcclTransportOptions options_;
  Rendezvous& rendezvous_;
  Transport& host_;
  const std::unique_ptr<DeviceTransport> other_;
  backend::BackendFactory& backends_;
  AbortSignal abort_;
  std::unique_ptr<Communicators> communicators_;  // null: there is no NCCL here

  absl::Mutex mutex_;
  std::map<Rank, Presence> presences_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTransport>> CreateNcclTransport(
    NcclTransportOptions options, Rendezvous& rendezvous, Transport& host,
    std::unique_ptr<DeviceTransport> other, backend::BackendFactory& backends) {
  auto transport = std::make_unique<NcclTransport>(std::move(options), rendezvous, host,
                                                   std::move(other), backends);
  RETURN_IF_ERROR(transport->Publish());
  return transport;
}

}  // namespace takt::transport::nccl
