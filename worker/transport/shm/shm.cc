// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/shm/shm.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "worker/transport/message_header.h"
#include "worker/transport/ring.h"
#include "worker/transport/shm/shared_memory.h"

namespace takt::transport {

namespace {

// The verdict of the rank that offered memory.
// These go between workers whose programs may be one version apart.
constexpr char kSharedVerdict[] = "shm", kNotSharedVerdict[] = "gloo";
constexpr std::uint64_t kRingMagic = 0x5441'4b54'5249'4e31;  // "TAKTRIN1"

// A ring with its token, as its maker announces it and as the other end finds it.
struct Offer {
  SharedMemory memory;
  Nonce token;
  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(memory.bytes.get()); }
};

absl::StatusOr<Offer> MakeOffer(const std::string& label, std::size_t max_bytes) {
  Offer offer;
  ASSIGN_OR_RETURN(offer.memory, CreateSharedMemory(label, RingBytes(max_bytes)));
  offer.token = RandomNonce();
  RingHeader& header = offer.header();
  header.magic = kRingMagic;
  header.token = offer.token;
  header.capacity_bytes = RingCapacity(max_bytes);
  header.max_message_bytes = max_bytes;
  return offer;
}

std::string Announcement(const Offer& offer) {
  return absl::StrCat(offer.memory.handle, ";", ToHex(AsText(offer.token)));
}

// Errors: kInvalidArgument (it is no announcement); kUnavailable and kFailedPrecondition as
// AttachSharedMemory.
absl::StatusOr<Offer> TakeOffer(const std::string& announcement) {
  const std::vector<std::string> fields = absl::StrSplit(announcement, ';');
  Offer offer;
  if (fields.size() != 2) return absl::InvalidArgumentError("not an announcement of a ring");
  ASSIGN_OR_RETURN(const std::string token, FromHex(fields[1]));
  if (token.size() != offer.token.size()) return absl::InvalidArgumentError("not a ring's token");
  std::memcpy(offer.token.data(), token.data(), token.size());
  ASSIGN_OR_RETURN(offer.memory, AttachSharedMemory(fields[0]));
  const RingHeader& header = offer.header();
  if (offer.memory.size_bytes < sizeof(RingHeader) || header.magic != kRingMagic ||
      header.token != offer.token) {
    return absl::FailedPreconditionError("the memory behind the handle is not the announced ring");
  }
  return offer;
}

Proof ProofOf(const TransportOptions& options, const Offer& offer, const std::string& channel,
              const char* side) {
  return Prove(options, absl::StrCat("shm ", side, " ", channel, " ", ToHex(AsText(offer.token))));
}

std::int64_t ConnectDeadline(const TransportOptions& options) {
  return MonotonicNanos() + absl::ToInt64Nanoseconds(options.connect_timeout);
}

// False: the deadline came first.
absl::StatusOr<bool> AwaitPhase(RingHeader& header, RingPhase phase, std::int64_t deadline,
                                AbortSignal& abort) {
  const auto hook = abort.OnRaise([&] { header.phase_moved.WakeAfterAll(); });
  const bool in_time = header.phase_moved.Await(
      [&] { return header.phase.load() >= phase || abort.raised(); }, deadline, 0);
  if (abort.raised()) return AbortedStatus();
  return in_time;
}

void Advance(RingHeader& header, RingPhase phase) {
  header.phase.store(phase);
  header.phase_moved.Wake();
}

class ShmTransport final : public Transport {
 public:
  ShmTransport(TransportOptions options, Rendezvous& rendezvous, std::shared_ptr<AbortSignal> abort)
      : options_(std::move(options)), rendezvous_(rendezvous), abort_(std::move(abort)) {}

  absl::StatusOr<std::unique_ptr<SendChannel>> OpenSend(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    if (abort_->raised()) return AbortedStatus();
    const std::string key = ChannelKey(options_.rank, peer, name);
    ASSIGN_OR_RETURN(Offer offer, MakeOffer(absl::StrCat("takt-", key), max_bytes));
    RETURN_IF_ERROR(rendezvous_.Set("shm/" + key, Announcement(offer)));
    RingHeader& header = offer.header();
    RETURN_IF_ERROR(AwaitReceiver(header, ProofOf(options_, offer, key, "receiver"), key));
    header.sender_proof = ProofOf(options_, offer, key, "sender");
    Advance(header, kRingAccepted);
    return MakeRingSender(
        EndOf(std::move(offer), max_bytes, absl::StrCat(name, " to rank ", peer.value())));
  }

  absl::StatusOr<std::unique_ptr<RecvChannel>> OpenRecv(Rank peer, const std::string& name,
                                                        std::size_t max_bytes) override {
    const std::string key = ChannelKey(peer, options_.rank, name);
    ASSIGN_OR_RETURN(const std::string announcement,
                     AwaitKey(rendezvous_, "shm/" + key, options_.connect_timeout, *abort_,
                              absl::StrCat("rank ", peer.value(), " to open channel ", name)));
    absl::StatusOr<Offer> taken = TakeOffer(announcement);
    if (absl::IsInvalidArgument(taken.status()))
      return UnreadableStatus(peer, absl::StrCat("channel ", key), announcement);
    if (!taken.ok()) {
      return Annotate(taken.status(), absl::StrCat("channel ", name, " from rank ", peer.value(),
                                                   ", by memory of one host"));
    }
    Offer offer = *std::move(taken);
    RingHeader& header = offer.header();
    if (header.max_message_bytes != max_bytes || header.capacity_bytes != RingCapacity(max_bytes) ||
        offer.memory.size_bytes != RingBytes(max_bytes)) {
      return DifferentSizes(key, max_bytes, header.max_message_bytes);
    }
    header.receiver_proof = ProofOf(options_, offer, key, "receiver");
    Advance(header, kRingAttached);
    ASSIGN_OR_RETURN(const bool accepted,
                     AwaitPhase(header, kRingAccepted, ConnectDeadline(options_), *abort_));
    if (!accepted) {
      return TimeoutStatus(absl::StrCat("the peer to accept us on channel ", key),
                           options_.connect_timeout);
    }
    if (!SameProof(header.sender_proof, ProofOf(options_, offer, key, "sender"))) {
      return absl::PermissionDeniedError(
          absl::StrCat("channel ", key, ": the peer does not know this generation's secret"));
    }
    return MakeRingReceiver(
        EndOf(std::move(offer), max_bytes, absl::StrCat(name, " from rank ", peer.value())));
  }

  void Abort() override { abort_->Raise(); }

 private:
  // Waits until an end comes that proves to be the receiver. One that cannot prove it changes
  // nothing.
  absl::Status AwaitReceiver(RingHeader& header, const Proof& expected,
                             const std::string& channel) {
    const std::int64_t deadline = ConnectDeadline(options_);
    std::string what = absl::StrCat("the peer to open channel ", channel);
    for (bool impostor = false;; impostor = true) {
      ASSIGN_OR_RETURN(const bool came, AwaitPhase(header, kRingAttached, deadline, *abort_));
      if (!came) {
        if (impostor) what += "; somebody opened it who does not know this generation's secret";
        return TimeoutStatus(what, options_.connect_timeout);
      }
      // The phase is reset before the look, so an end that comes after it announces itself again.
      header.phase.store(kRingOffered);
      if (SameProof(header.receiver_proof, expected)) return absl::OkStatus();
    }
  }

  RingOptions EndOf(Offer offer, std::size_t max_bytes, std::string channel) const {
    return {.memory = std::move(offer.memory.bytes),
            .max_message_bytes = max_bytes,
            .channel = std::move(channel),
            .operation_timeout = options_.operation_timeout,
            .abort = abort_};
  }

  const TransportOptions options_;
  Rendezvous& rendezvous_;
  const std::shared_ptr<AbortSignal> abort_;
};

}  // namespace

std::unique_ptr<Transport> CreateShmTransport(TransportOptions options, Rendezvous& rendezvous,
                                              std::shared_ptr<AbortSignal> abort) {
  return std::make_unique<ShmTransport>(std::move(options), rendezvous, std::move(abort));
}

absl::StatusOr<bool> SharesMemory(const TransportOptions& options, Rendezvous& rendezvous,
                                  Rank peer, AbortSignal& abort) {
  // The lower rank offers memory, the higher one answers in it and says so, and the lower one looks
  // and decides.
  const bool offering = options.rank < peer;
  const std::string key =
      offering ? ChannelKey(options.rank, peer, "reach") : ChannelKey(peer, options.rank, "reach");
  const auto await = [&](const char* part) {
    return AwaitKey(rendezvous, absl::StrCat("reach/", key, "/", part), options.connect_timeout,
                    abort, absl::StrCat("rank ", peer.value(), " to choose a transport"));
  };
  const auto set = [&](const char* part, const std::string& value) {
    return rendezvous.Set(absl::StrCat("reach/", key, "/", part), value);
  };
  if (offering) {
    const absl::StatusOr<Offer> offer = MakeOffer("takt-reach", 0);
    RETURN_IF_ERROR(set("offer", offer.ok() ? Announcement(*offer) : ""));
    RETURN_IF_ERROR(await("answer").status());
    const bool shared =
        offer.ok() && offer->header().phase.load() == kRingAttached &&
        SameProof(offer->header().receiver_proof, ProofOf(options, *offer, key, "receiver"));
    RETURN_IF_ERROR(set("verdict", shared ? kSharedVerdict : kNotSharedVerdict));
    return shared;
  }
  ASSIGN_OR_RETURN(const std::string announcement, await("offer"));
  if (const absl::StatusOr<Offer> offer = TakeOffer(announcement); offer.ok()) {
    offer->header().receiver_proof = ProofOf(options, *offer, key, "receiver");
    Advance(offer->header(), kRingAttached);
  }
  RETURN_IF_ERROR(set("answer", "looked"));
  ASSIGN_OR_RETURN(const std::string verdict, await("verdict"));
  if (verdict != kSharedVerdict && verdict != kNotSharedVerdict)
    return UnreadableStatus(peer, "the transport that it chose", verdict);
  return verdict == kSharedVerdict;
}

}  // namespace takt::transport
