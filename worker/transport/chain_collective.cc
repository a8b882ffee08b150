// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/chain_collective.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/transport/channel_collective.h"

namespace takt::transport {

namespace {

// These are values of MessageTag::direction, as those in channel_collective.cc.
enum Phase : std::int32_t { kUp = 20, kDown = 21, kRound = 22 };

class ChainCollective final : public Collective {
 public:
  explicit ChainCollective(CollectiveOptions options)
      : options_(std::move(options)), received_(options_.slice_bytes) {}

  absl::Status Open(Transport& transport);

  int size() const override { return static_cast<int>(options_.ranks.size()); }
  int index() const override { return options_.index; }
  absl::Status AllReduceSum(StepId step, std::span<float> data) override {
    return Reduce(step, data, {});
  }
  absl::Status AllReduceSum(StepId step, std::span<double> data) override {
    return Reduce(step, data, {});
  }
  absl::Status AllReduceTerms(StepId step, std::span<float> data, const Terms& terms) override {
    return Reduce(step, data, terms);
  }
  absl::Status ReduceScatterSum(StepId step, Parts parts) override {
    return ReduceScatterTerms(step, parts, {});
  }
  absl::Status ReduceScatterTerms(StepId step, Parts parts, const Terms& terms) override;
  absl::Status AllGather(StepId step, Received parts) override;
  absl::Status SendTo(StepId step, int root, std::span<const std::byte> mine,
                      Received parts) override;

 private:
  struct Neighbour {
    std::unique_ptr<SendChannel> out;
    std::unique_ptr<RecvChannel> in;
  };

  bool is_first() const { return options_.index == 0; }
  bool is_last() const { return options_.index + 1 == size(); }

  // Opens both directions to the rank behind this one, or before it.
  absl::Status Meet(Transport& transport, bool behind);
  // Opens the way from the last rank to the first.
  absl::Status CloseRing(Transport& transport);

  // Both return null where the chain ends.
  Neighbour* before() { return is_first() ? nullptr : &before_; }
  Neighbour* behind() { return is_last() ? nullptr : &behind_; }

  MessageTag NextTag(StepId step) {
    return {.generation = options_.generation,
            .step = step.value(),
            .direction = kUp,
            .sequence = static_cast<std::int32_t>(sequence_++)};
  }

  template <class T>
  absl::Status Reduce(StepId step, std::span<T> data, const Terms& terms);
  // Adds our terms to the sum of the ranks before this one, slice by slice, and passes it on. The
  // last rank then has the sum of all.
  template <class T>
  absl::Status SumUp(const MessageTag& tag, std::span<T> data, const Terms& terms);
  // Receives `data` from one neighbour and sends it to another, slice by slice. from: null: we have
  // it. to: null: nobody wants it.
  absl::Status Relay(const MessageTag& tag, Neighbour* from, Neighbour* to,
                     std::span<std::byte> data);
  // Sends `data` behind its length.
  absl::Status SendWithLength(const MessageTag& tag, Neighbour& to,
                              std::span<const std::byte> data);
  // Passes on what SendWithLength sent.
  absl::Status RelayWithLength(const MessageTag& tag, Neighbour& from, Neighbour& to);
  // Receives what SendWithLength sent. Errors: also kInternal (it has another length).
  absl::Status ReceiveWithLength(const MessageTag& tag, Neighbour& from, std::span<std::byte> data);

  const CollectiveOptions options_;
  Neighbour before_, behind_;        // in a ring the first rank is behind the last one
  std::vector<std::byte> received_;  // a slice
  std::uint32_t sequence_ = 0;       // it begins again after 2^32 calls, on all ranks alike
};

// Every rank meets at most one other at a time: those at even places the rank behind them first,
// those at odd places the rank before them.
absl::Status ChainCollective::Open(Transport& transport) {
  const bool behind_first = options_.index % 2 == 0;
  for (const bool behind : {behind_first, !behind_first}) {
    if (behind ? is_last() : is_first()) continue;
    RETURN_IF_ERROR(Meet(transport, behind));
  }
  return options_.large_group == LargeGroup::kRing ? CloseRing(transport) : absl::OkStatus();
}

absl::Status ChainCollective::CloseRing(Transport& transport) {
  if (is_last()) {
    ASSIGN_OR_RETURN(behind_.out, transport.OpenSend(options_.ranks.front(), options_.name,
                                                     options_.slice_bytes));
  }
  if (is_first()) {
    ASSIGN_OR_RETURN(
        before_.in, transport.OpenRecv(options_.ranks.back(), options_.name, options_.slice_bytes));
  }
  return absl::OkStatus();
}

absl::Status ChainCollective::Meet(Transport& transport, bool behind) {
  Neighbour& neighbour = behind ? behind_ : before_;
  const int place = options_.index + (behind ? 1 : -1);
  const Rank peer = options_.ranks[static_cast<std::size_t>(place)];
  const auto open_out = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(neighbour.out, transport.OpenSend(peer, options_.name, options_.slice_bytes));
    return absl::OkStatus();
  };
  const auto open_in = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(neighbour.in, transport.OpenRecv(peer, options_.name, options_.slice_bytes));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(behind ? open_out() : open_in());
  return behind ? open_in() : open_out();
}

template <class T>
absl::Status ChainCollective::SumUp(const MessageTag& tag, std::span<T> data, const Terms& terms) {
  if (terms.in_turns > 1) return absl::UnimplementedError("ranks of a chain take no turns");
  const std::size_t most = options_.slice_bytes / sizeof(T);
  for (std::size_t begin = 0; begin < data.size(); begin += most) {
    const std::span<T> slice = data.subspan(begin, std::min(most, data.size() - begin));
    const T* sum = terms.Of(slice.data(), 0);
    int term = 1;  // the next one
    if (!is_first()) {
      const std::span<std::byte> bytes = std::span(received_).first(slice.size_bytes());
      RETURN_IF_ERROR(before_.in->Recv(tag, bytes));
      sum = reinterpret_cast<const T*>(bytes.data());
      term = 0;
    }
    for (; term < terms.count; ++term) {
      // Sums take the place of the addend. The last one is in place.
      T* const addend = terms.Of(slice.data(), term);
      for (std::size_t i = 0; i < slice.size(); ++i) addend[i] = sum[i] + addend[i];
      sum = addend;
    }
    if (!is_last()) RETURN_IF_ERROR(behind_.out->Send(tag, std::as_bytes(slice)));
  }
  return absl::OkStatus();
}

absl::Status ChainCollective::Relay(const MessageTag& tag, Neighbour* from, Neighbour* to,
                                    std::span<std::byte> data) {
  for (std::size_t begin = 0; begin < data.size(); begin += options_.slice_bytes) {
    const std::span<std::byte> slice =
        data.subspan(begin, std::min(options_.slice_bytes, data.size() - begin));
    if (from != nullptr) RETURN_IF_ERROR(from->in->Recv(tag, slice));
    if (to != nullptr) RETURN_IF_ERROR(to->out->Send(tag, slice));
  }
  return absl::OkStatus();
}

template <class T>
absl::Status ChainCollective::Reduce(StepId step, std::span<T> data, const Terms& terms) {
  MessageTag tag = NextTag(step);
  RETURN_IF_ERROR(SumUp(tag, data, terms));
  tag.direction = kDown;
  return Relay(tag, behind(), before(), std::as_writable_bytes(data));
}

absl::Status ChainCollective::ReduceScatterTerms(StepId step, Parts parts, const Terms& terms) {
  TAKT_CHECK(parts.size() == options_.ranks.size());
  MessageTag tag = NextTag(step);
  for (const std::span<float> part : parts) RETURN_IF_ERROR(SumUp(tag, part, terms));
  tag.direction = kDown;
  // The parts that go furthest go first.
  for (int i = 0; i <= index(); ++i) {
    Neighbour* const to = i < index() ? &before_ : nullptr;
    RETURN_IF_ERROR(
        Relay(tag, behind(), to, std::as_writable_bytes(parts[static_cast<std::size_t>(i)])));
  }
  return absl::OkStatus();
}

absl::Status ChainCollective::AllGather(StepId step, Received parts) {
  TAKT_CHECK(parts.size() == options_.ranks.size());
  if (options_.large_group != LargeGroup::kRing)
    return absl::UnimplementedError("this group is a chain: no parts go round");
  MessageTag tag = NextTag(step);
  tag.direction = kRound;
  const auto part_of = [&](int rank) {
    return parts[static_cast<std::size_t>((rank + size()) % size())];
  };
  // One of two neighbours sends while the other one receives. In a group of odd size the last rank
  // and the first both send first. The rank behind the first one receives then, so no ranks wait in
  // a circle.
  const bool sends_first = index() % 2 == 0;
  for (int round = 0; round + 1 < size(); ++round) {
    const std::span<std::byte> sent = part_of(index() - round);
    const std::span<std::byte> received = part_of(index() - round - 1);
    if (sends_first) RETURN_IF_ERROR(Relay(tag, nullptr, &behind_, sent));
    RETURN_IF_ERROR(Relay(tag, &before_, nullptr, received));
    if (!sends_first) RETURN_IF_ERROR(Relay(tag, nullptr, &behind_, sent));
  }
  return absl::OkStatus();
}

absl::Status ChainCollective::SendTo(StepId step, int root, std::span<const std::byte> mine,
                                     Received parts) {
  TAKT_CHECK(root >= 0 && root < size());
  MessageTag tag = NextTag(step);
  if (index() == root) {
    TAKT_CHECK(parts.size() == options_.ranks.size());
    for (int i = 0; i < root; ++i)
      RETURN_IF_ERROR(ReceiveWithLength(tag, before_, parts[static_cast<std::size_t>(i)]));
    tag.direction = kDown;
    for (int i = size() - 1; i > root; --i)
      RETURN_IF_ERROR(ReceiveWithLength(tag, behind_, parts[static_cast<std::size_t>(i)]));
    return absl::OkStatus();
  }
  const bool up = index() < root;
  if (!up) tag.direction = kDown;
  Neighbour& to = up ? behind_ : before_;
  const int ranks_that_pass = up ? index() : size() - 1 - index();
  for (int i = 0; i < ranks_that_pass; ++i)
    RETURN_IF_ERROR(RelayWithLength(tag, up ? before_ : behind_, to));
  return SendWithLength(tag, to, mine);
}

absl::Status ChainCollective::SendWithLength(const MessageTag& tag, Neighbour& to,
                                             std::span<const std::byte> data) {
  const std::uint64_t length = data.size();
  RETURN_IF_ERROR(to.out->Send(tag, std::as_bytes(std::span(&length, 1))));
  for (std::size_t begin = 0; begin < data.size(); begin += options_.slice_bytes) {
    RETURN_IF_ERROR(to.out->Send(
        tag, data.subspan(begin, std::min(options_.slice_bytes, data.size() - begin))));
  }
  return absl::OkStatus();
}

absl::Status ChainCollective::RelayWithLength(const MessageTag& tag, Neighbour& from,
                                              Neighbour& to) {
  std::uint64_t left = 0;
  RETURN_IF_ERROR(Relay(tag, &from, &to, std::as_writable_bytes(std::span(&left, 1))));
  while (left > 0) {
    const std::size_t taken = std::min<std::uint64_t>(left, received_.size());
    RETURN_IF_ERROR(Relay(tag, &from, &to, std::span(received_).first(taken)));
    left -= taken;
  }
  return absl::OkStatus();
}

absl::Status ChainCollective::ReceiveWithLength(const MessageTag& tag, Neighbour& from,
                                                std::span<std::byte> data) {
  std::uint64_t length = 0;
  RETURN_IF_ERROR(Relay(tag, &from, nullptr, std::as_writable_bytes(std::span(&length, 1))));
  if (length != data.size()) {
    return absl::InternalError(absl::StrCat("group ", options_.name, ": a rank sends ", length,
                                            " bytes where ", data.size(), " were expected"));
  }
  return Relay(tag, &from, nullptr, data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> CreateChainCollective(Transport& transport,
                                                                  CollectiveOptions options) {
  TAKT_CHECK(options.ranks.size() > 1);
  auto collective = std::make_unique<ChainCollective>(std::move(options));
  RETURN_IF_ERROR(collective->Open(transport));
  return collective;
}

}  // namespace takt::transport
