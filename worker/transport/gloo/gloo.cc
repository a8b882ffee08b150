// SPDX-License-Identifier: Apache-2.0
// A message is a header with small data behind it. Large data passes separately, straight from the
// sender's into the receiver's memory:
//
//   slot          header (64 bytes) and up to kInlineBytes of data
//   slot + 1      data, if there is more
//
// With options.sparse_meeting, the first thing on slot + 1 is the channel's largest message (8
// bytes), in both directions.
//
// Gloo ends the process when more bytes come than a receive was posted for. So a receive for data
// is posted only for the size that the header announced, or ahead of the header for the channel's
// largest message, on which both ends agree and which no sender exceeds.
#include "worker/transport/gloo/gloo.h"

#include <signal.h>
#include <xxhash.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gloo/transport/tcp/device.h"
#include "worker/transport/gloo/adopted_pair.h"
#include "worker/transport/gloo/connection.h"
#include "worker/transport/handshake.h"
#include "worker/transport/message_header.h"
#include "worker/transport/tcp/peer_listener.h"

namespace takt::transport {

namespace {

constexpr std::size_t kInlineBytes = 64 * 1024;
constexpr std::size_t kStagingBytes = sizeof(MessageHeader) + kInlineBytes;

struct GlooChannelOptions {
  std::shared_ptr<GlooConnection> connection;
  std::uint64_t slot = 0;
  std::size_t max_bytes = 0;
  std::string channel;  // for messages
  absl::Duration timeout;
  Rank peer;
};

// The common part of both ends.
class GlooEnd {
 protected:
  explicit GlooEnd(GlooChannelOptions options)
      : options_(std::move(options)),
        staging_(kStagingBytes),
        header_buffer_(options_.connection, staging_.data(), staging_.size()) {}

  const GlooChannelOptions options_;
  std::vector<std::byte> staging_;
  GlooConnection::Buffer header_buffer_;
  absl::Status failure_;  // sticks: the connection cannot be used any more
};

class GlooSender final : public SendChannel, GlooEnd {
 public:
  explicit GlooSender(GlooChannelOptions options) : GlooEnd(std::move(options)) {}

  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override {
    RETURN_IF_ERROR(failure_);
    RETURN_IF_ERROR(CheckFits(options_.channel, data.size(), options_.max_bytes));
    return failure_ = Transfer(tag, data);
  }

 private:
  absl::Status Transfer(const MessageTag& tag, std::span<const std::byte> data) {
    const MessageHeader header{.tag = tag, .size_bytes = data.size()};
    const bool rides_along = data.size() <= kInlineBytes;
    std::memcpy(staging_.data(), &header, sizeof(header));
    if (rides_along && !data.empty()) {
      std::memcpy(staging_.data() + sizeof(header), data.data(), data.size());
    }
    const std::string& what = options_.channel;
    if (rides_along) {
      RETURN_IF_ERROR(header_buffer_.StartSend(options_.slot, sizeof(header) + data.size()));
      return header_buffer_.FinishSend(options_.timeout, what);
    }
    // The data goes first: the header then wakes a receiver that is ready for the data once, when
    // all is there. Gloo does not write to the memory that it sends from.
    GlooConnection::Buffer payload(options_.connection, const_cast<std::byte*>(data.data()),
                                   data.size());
    RETURN_IF_ERROR(payload.StartSend(options_.slot + 1, data.size()));
    RETURN_IF_ERROR(header_buffer_.StartSend(options_.slot, sizeof(header)));
    RETURN_IF_ERROR(header_buffer_.FinishSend(options_.timeout, what));
    return payload.FinishSend(options_.timeout, what);
  }
};

class GlooReceiver final : public RecvChannel, GlooEnd {
 public:
  explicit GlooReceiver(GlooChannelOptions options) : GlooEnd(std::move(options)) {}

  // Posts the receive of the first header. The receive of the next one is posted when one was
  // taken.
  absl::Status PostHeader() { return header_buffer_.StartRecv(options_.slot, staging_.size()); }

  absl::Status Recv(const MessageTag& tag, std::span<std::byte> data) override {
    RETURN_IF_ERROR(failure_);
    return failure_ = Transfer(tag, data);
  }

 private:
  absl::Status Transfer(const MessageTag& tag, std::span<std::byte> data) {
    const bool rides_along = data.size() <= kInlineBytes;
    const std::string& what = options_.channel;
    std::optional<GlooConnection::Buffer> payload;
    const auto post_payload = [&] {
      payload.emplace(options_.connection, data.data(), data.size());
      return payload->StartRecv(options_.slot + 1, data.size());
    };
    const bool ahead = !rides_along && data.size() == options_.max_bytes;
    RETURN_IF_ERROR(next_header_);
    if (ahead) RETURN_IF_ERROR(post_payload());
    RETURN_IF_ERROR(header_buffer_.FinishRecv(options_.timeout, what));
    MessageHeader header;
    std::memcpy(&header, staging_.data(), sizeof(header));
    RETURN_IF_ERROR(CheckHeader(header, tag, data.size(), what));
    if (rides_along && !data.empty()) {
      std::memcpy(data.data(), staging_.data() + sizeof(header), data.size());
    }
    if (!rides_along) {
      if (!ahead) RETURN_IF_ERROR(post_payload());
      RETURN_IF_ERROR(payload->FinishRecv(options_.timeout, what));
    }
    // The sender may have left after its last message. The next receive reports that.
    next_header_ = PostHeader();
    return absl::OkStatus();
  }

  absl::Status next_header_;  // of posting its receive
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(TransportOptions options, Rendezvous& rendezvous,
                std::shared_ptr<AbortSignal> abort,
                std::shared_ptr<gloo::transport::tcp::Device> device)
      : options_(std::move(options)),
        rendezvous_(rendezvous),
        abort_(std::move(abort)),
        device_(std::move(device)) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(GlooChannelOptions channel,
                     Open(ChannelKey(options_.rank, peer, name), peer, max_bytes,
                          absl::StrCat(name, " to rank ", peer.value())));
    RETURN_IF_ERROR(Meet(ChannelKey(options_.rank, peer, name), /*sends=*/true, channel));
    return std::make_unique<GlooSender>(std::move(channel));
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(GlooChannelOptions channel,
                     Open(ChannelKey(peer, options_.rank, name), peer, max_bytes,
                          absl::StrCat(name, " from rank ", peer.value())));
    auto receiver = std::make_unique<GlooReceiver>(channel);
    RETURN_IF_ERROR(receiver->PostHeader());
    RETURN_IF_ERROR(Meet(ChannelKey(peer, options_.rank, name), /*sends=*/false, channel));
    return receiver;
  }

  void Abort() override { abort_->Raise(); }

 private:
  absl::StatusOr<GlooChannelOptions> Open(const std::string& key, Rank peer, std::size_t max_bytes,
                                          std::string channel) {
    if (abort_->raised()) return AbortedStatus();
    ASSIGN_OR_RETURN(std::shared_ptr<GlooConnection> connection, ConnectionTo(peer));
    return GlooChannelOptions{.connection = std::move(connection),
                              .slot = XXH3_64bits(key.data(), key.size()) & ~std::uint64_t{1},
                              .max_bytes = max_bytes,
                              .channel = std::move(channel),
                              .timeout = options_.operation_timeout,
                              .peer = peer};
  }

  // Waits until both ends are there, and checks that they agree on the largest message.
  absl::Status Meet(const std::string& key, bool sends, const GlooChannelOptions& channel) {
    ASSIGN_OR_RETURN(const std::uint64_t their_bytes, options_.sparse_meeting
                                                          ? ExchangeSizes(channel)
                                                          : PublishSize(key, sends, channel));
    if (their_bytes == channel.max_bytes) return absl::OkStatus();
    return DifferentSizes(channel.channel, channel.max_bytes, their_bytes);
  }

  // Both tell the peer this end's largest message, and return the peer's.
  absl::StatusOr<std::uint64_t> ExchangeSizes(const GlooChannelOptions& channel) const {
    std::uint64_t mine = channel.max_bytes, theirs = 0;
    GlooConnection::Buffer sent(channel.connection, &mine, sizeof(mine));
    GlooConnection::Buffer received(channel.connection, &theirs, sizeof(theirs));
    const std::string what = absl::StrCat("the peer to open channel ", channel.channel);
    RETURN_IF_ERROR(received.StartRecv(channel.slot + 1, sizeof(theirs)));
    RETURN_IF_ERROR(sent.StartSend(channel.slot + 1, sizeof(mine)));
    RETURN_IF_ERROR(received.FinishRecv(options_.connect_timeout, what));
    RETURN_IF_ERROR(sent.FinishSend(options_.connect_timeout, what));
    return theirs;
  }
  absl::StatusOr<std::uint64_t> PublishSize(const std::string& key, bool sends,
                                            const GlooChannelOptions& channel) {
    const char* const side = sends ? "sender" : "receiver";
    const char* const other = sends ? "receiver" : "sender";
    RETURN_IF_ERROR(
        rendezvous_.Set(absl::StrCat("gloo/", key, "/", side), absl::StrCat(channel.max_bytes)));
    ASSIGN_OR_RETURN(
        const std::string there,
        AwaitKey(rendezvous_, absl::StrCat("gloo/", key, "/", other), options_.connect_timeout,
                 *abort_, absl::StrCat("the peer to open channel ", channel.channel)));
    std::uint64_t their_bytes = 0;
    if (absl::SimpleAtoi(there, &their_bytes)) return their_bytes;
    return UnreadableStatus(channel.peer, "its largest message", there);
  }

  absl::StatusOr<std::shared_ptr<GlooConnection>> ConnectionTo(Rank peer) {
    Link* link;
    {
      std::lock_guard lock(mutex_);
      link = &links_[peer];
    }
    std::lock_guard lock(link->mutex);
    if (link->connection == nullptr) {
      const bool listens = options_.rank < peer;
      ASSIGN_OR_RETURN(net::Socket socket, listens ? AcceptFrom(peer) : Dial(peer));
      ASSIGN_OR_RETURN(link->connection, GlooConnection::Create(options_, device_, listens ? 0 : 1,
                                                                std::move(socket), abort_));
    }
    return link->connection;
  }

  // The lower of two ranks listens.
  absl::StatusOr<net::Socket> AcceptFrom(Rank peer) {
    PeerListener* listener;
    bool is_new = false;
    {
      std::lock_guard lock(mutex_);
      is_new = listener_ == nullptr;
      if (is_new) {
        ASSIGN_OR_RETURN(listener_, PeerListener::Create(options_, abort_));
      }
      listener = listener_.get();
    }
    if (is_new || !options_.sparse_meeting)
      RETURN_IF_ERROR(rendezvous_.Set(AddressKey(options_.rank, peer), listener->address()));
    return listener->Accept(peer);
  }

  absl::StatusOr<net::Socket> Dial(Rank peer) {
    ASSIGN_OR_RETURN(
        const std::string address,
        AwaitKey(rendezvous_, AddressKey(peer, options_.rank), options_.connect_timeout, *abort_,
                 absl::StrCat("rank ", peer.value(), " to listen")));
    return DialPeer(options_, peer, address, *abort_);
  }

  std::string AddressKey(Rank listener, Rank dialer) const {
    if (options_.sparse_meeting) return absl::StrCat("gloo/rank/", listener.value());
    return absl::StrCat("gloo/", ChannelKey(listener, dialer, "address"));
  }

  struct Link {
    std::mutex
        mutex;  // held while connecting: others that want this peer wait for the same connection
    std::shared_ptr<GlooConnection> connection;
  };

  const TransportOptions options_;
  Rendezvous& rendezvous_;
  const std::shared_ptr<AbortSignal> abort_;
  const std::shared_ptr<gloo::transport::tcp::Device> device_;
  std::mutex mutex_;
  std::unique_ptr<PeerListener> listener_;  // made for the first peer that dials
  std::map<Rank, Link> links_;              // entries stay where they are
};

// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that dies in the middle of a message would
// end this process too.
void IgnoreBrokenPipes() {
  struct sigaction action;
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateGlooTransport(TransportOptions options,
                                                               Rendezvous& rendezvous,
                                                               std::shared_ptr<AbortSignal> abort) {
  IgnoreBrokenPipes();
  std::shared_ptr<gloo::transport::tcp::Device> device;
  try {
    device = CreateAdoptingDevice(options.data_address);
  } catch (const std::exception& error) {
    return InvalidField(
        {.field = "data_address",
         .value = options.data_address,
         .rule = "must be an address of this host that Gloo can bind",
         .fix = absl::StrCat("set the worker's data address (", error.what(), ")")});
  }
  return std::make_unique<GlooTransport>(std::move(options), rendezvous, std::move(abort),
                                         std::move(device));
}

}  // namespace takt::transport
