// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/channel_collective.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/direct_ranks.h"
#include "common/base/status.h"
#include "worker/transport/chain_collective.h"

namespace takt::transport {

namespace {

// These are values of MessageTag::direction for collectives. program::Direction uses the small
// numbers.
enum Phase : std::int32_t { kDirect = 16, kReduceScatter = 17, kAllGather = 18, kPass = 19 };

constexpr std::size_t kLineBytes = 64;

// Returns one of `parts` nearly equal, consecutive parts of [0, total).
struct Range {
  std::size_t begin, size;
};
Range Part(std::size_t total, int parts, int index) {
  const std::size_t begin = total * index / parts, end = total * (index + 1) / parts;
  return {begin, end - begin};
}

class ChannelCollective final : public Collective {
 public:
  explicit ChannelCollective(CollectiveOptions options) : options_(std::move(options)) {}

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
  absl::Status ReduceScatterTerms(StepId step, Parts parts, const Terms& terms) override {
    return ReduceParts(step, parts, terms, [&](std::span<float> mine) { Sum(mine, terms); });
  }
  absl::Status ReduceScatterTree(StepId step, Parts parts) override {
    TAKT_CHECK(std::has_single_bit(static_cast<unsigned>(size())) && size() <= kMostInTree);
    return ReduceParts(step, parts, {}, [this](std::span<float> mine) { SumAsTree(mine); });
  }
  absl::Status Pass(StepId step, Sent sent, Received received) override {
    TAKT_CHECK(sent.size() == options_.ranks.size() && received.size() == options_.ranks.size());
    return Exchange(step, kPass, [&](int peer) { return std::pair{sent[peer], received[peer]}; });
  }

 private:
  template <class T>
  absl::Status Reduce(StepId step, std::span<T> data, const Terms& terms) {
    if (size() == 1 && terms.count == 1) return absl::OkStatus();
    if (data.size_bytes() <= std::min(kDirectBytes, term_bytes(terms)))
      return ReduceDirect(step, data, terms);
    const std::size_t round = term_bytes(terms) / sizeof(T) * size();
    for (; !data.empty(); data = data.subspan(std::min(round, data.size()))) {
      RETURN_IF_ERROR(ReduceSliced(step, data.first(std::min(round, data.size())), terms));
    }
    return absl::OkStatus();
  }

  template <class T>
  absl::Status ReduceDirect(StepId step, std::span<T> data, const Terms& terms) {
    for (int term = 0; term < terms.count; ++term) {
      const std::span<T> sent(terms.Of(data.data(), term), data.size());
      RETURN_IF_ERROR(Exchange(step, kDirect, [&](int peer) {
        return std::pair{std::as_bytes(sent),
                         Contribution(peer, terms, term).first(data.size_bytes())};
      }));
    }
    Sum(data, terms);
    return absl::OkStatus();
  }

  template <class T>
  absl::Status ReduceSliced(StepId step, std::span<T> data, const Terms& terms) {
    const auto slice = [&](int index) {
      const Range range = Part(data.size(), size(), index);
      return data.subspan(range.begin, range.size);
    };
    RETURN_IF_ERROR(SumSlices(step, slice, terms, [&](std::span<T> mine) { Sum(mine, terms); }));
    const std::span<T> mine = slice(options_.index);
    return Exchange(step, kAllGather, [&](int peer) {
      return std::pair{std::as_bytes(mine), std::as_writable_bytes(slice(peer))};
    });
  }

  // add(mine): adds our values of a slice and those of the others, which are contributions.
  template <class Add>
  absl::Status ReduceParts(StepId step, Parts parts, const Terms& terms, const Add& add) {
    TAKT_CHECK(parts.size() == options_.ranks.size());
    if (size() == 1 && terms.count == 1) return absl::OkStatus();
    std::size_t longest = 0;
    for (const std::span<float> part : parts) longest = std::max(longest, part.size());
    const std::size_t most = term_bytes(terms) / sizeof(float);
    for (std::size_t begin = 0; begin < longest; begin += most) {
      const auto slice = [&](int index) {
        const std::span<float> part = parts[static_cast<std::size_t>(index)];
        const std::size_t from = std::min(begin, part.size());
        return part.subspan(from, std::min(most, part.size() - from));
      };
      RETURN_IF_ERROR(SumSlices(step, slice, terms, add));
    }
    return absl::OkStatus();
  }

  // Adds slice(i) of all ranks on rank i. Slices have at most term_bytes.
  template <class Slice, class Add>
  absl::Status SumSlices(StepId step, const Slice& slice, const Terms& terms, const Add& add) {
    const auto mine = slice(options_.index);
    for (int term = 0; term < terms.count; ++term) {
      RETURN_IF_ERROR(Exchange(step, kReduceScatter, [&](int peer) {
        const auto sent = slice(peer);
        return std::pair{std::as_bytes(std::span(terms.Of(sent.data(), term), sent.size())),
                         Contribution(peer, terms, term).first(mine.size_bytes())};
      }));
    }
    add(mine);
    return absl::OkStatus();
  }

  // data[i] = ((x0[i] + x1[i]) + x2[i]) + ..., with our own terms in their place among the
  // contributions.
  template <class T>
  void Sum(std::span<T> data, const Terms& terms) {
    const auto values = [&](int place) -> const T* {
      const auto [index, term] = terms.At(place);
      return index == options_.index
                 ? terms.Of(data.data(), term)
                 : reinterpret_cast<const T*>(Contribution(index, terms, term).data());
    };
    // Blocks stay in the first-level cache while all ranks' values are added.
    constexpr std::size_t kBlock = 1024;
    T sum[kBlock];
    for (std::size_t begin = 0; begin < data.size(); begin += kBlock) {
      const std::size_t count = std::min(kBlock, data.size() - begin);
      std::copy_n(values(0) + begin, count, sum);
      for (int place = 1; place < size() * terms.count; ++place) {
        const T* const addend = values(place) + begin;
        for (std::size_t i = 0; i < count; ++i) sum[i] += addend[i];
      }
      std::copy_n(sum, count, data.data() + begin);
    }
  }

  // Computes data[i] = (x0[i] + x1[i]) + (x2[i] + x3[i]) for four ranks, and so on.
  void SumAsTree(std::span<float> data) {
    constexpr std::size_t kBlock = 1024;
    constexpr int kMostLevels = std::bit_width(static_cast<unsigned>(kMostInTree));
    // waiting[l] has the sum of 2^l ranks, which waits for that of the 2^l ranks behind them.
    float waiting[kMostLevels][kBlock] = {};
    float sum[kBlock];
    const int top = std::countr_zero(static_cast<unsigned>(size()));
    for (std::size_t begin = 0; begin < data.size(); begin += kBlock) {
      const std::size_t count = std::min(kBlock, data.size() - begin);
      for (int index = 0; index < size(); ++index) {
        const float* const values =
            index == options_.index ? data.data()
                                    : reinterpret_cast<const float*>(Contribution(index).data());
        std::copy_n(values + begin, count, sum);
        const int complete = std::countr_one(static_cast<unsigned>(index));
        for (int level = 0; level < complete; ++level) {
          for (std::size_t i = 0; i < count; ++i) sum[i] = waiting[level][i] + sum[i];
        }
        std::copy_n(sum, count, waiting[complete]);
      }
      std::copy_n(waiting[top], count, data.data() + begin);
    }
  }

  // Sends to every other rank and receives from it, in messages of up to slice_bytes. plan(peer):
  // what is sent there, and where the received bytes are put. Both may be empty.
  template <class Plan>
  absl::Status Exchange(StepId step, Phase phase, Plan&& plan);

  std::size_t slice_bytes() const { return options_.slice_bytes; }
  // The terms of a slice share the place of a contribution.
  std::size_t term_bytes(const Terms& terms) const {
    const std::size_t lines = slice_bytes() / static_cast<std::size_t>(terms.count) / kLineBytes;
    TAKT_CHECK(lines > 0);
    return lines * kLineBytes;
  }
  std::span<std::byte> Contribution(int index, const Terms& terms, int term) {
    const std::size_t bytes = term_bytes(terms);
    return Contribution(index).subspan(static_cast<std::size_t>(term) * bytes, bytes);
  }
  std::span<std::byte> Contribution(int index) {
    const std::size_t place = index < options_.index ? index : index - 1;
    return std::span(contributions_).subspan(place * slice_bytes(), slice_bytes());
  }

  struct Peer {
    std::unique_ptr<SendChannel> out;
    std::unique_ptr<RecvChannel> in;
  };

  const CollectiveOptions options_;
  std::vector<Peer> peers_;               // by index in the group; ours is empty
  std::vector<std::byte> contributions_;  // of the others, slice_bytes each
  std::uint32_t sequence_ = 0;  // it begins again after 2^32 exchanges, on all ranks alike
};

absl::Status ChannelCollective::Open(Transport& transport) {
  contributions_.resize((options_.ranks.size() - 1) * slice_bytes());
  peers_.resize(options_.ranks.size());
  // Channels are opened in the order of the exchanges, so openings cannot wait in a circle either.
  for (int round = 0; round < TournamentRounds(size()); ++round) {
    const int peer = TournamentPeer(size(), round, options_.index);
    if (peer < 0) continue;
    const Rank rank = options_.ranks[peer];
    const auto open_out = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(peers_[peer].out, transport.OpenSend(rank, options_.name, slice_bytes()));
      return absl::OkStatus();
    };
    const auto open_in = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(peers_[peer].in, transport.OpenRecv(rank, options_.name, slice_bytes()));
      return absl::OkStatus();
    };
    const bool first = options_.index < peer;
    RETURN_IF_ERROR(first ? open_out() : open_in());
    RETURN_IF_ERROR(first ? open_in() : open_out());
  }
  return absl::OkStatus();
}

template <class Plan>
absl::Status ChannelCollective::Exchange(StepId step, Phase phase, Plan&& plan) {
  const MessageTag tag{.generation = options_.generation,
                       .step = step.value(),
                       .direction = phase,
                       .sequence = static_cast<std::int32_t>(sequence_++)};
  const auto send = [&](int peer, std::span<const std::byte> data) -> absl::Status {
    for (; !data.empty(); data = data.subspan(std::min(slice_bytes(), data.size())))
      RETURN_IF_ERROR(
          peers_[peer].out->Send(tag, data.first(std::min(slice_bytes(), data.size()))));
    return absl::OkStatus();
  };
  const auto receive = [&](int peer, std::span<std::byte> data) -> absl::Status {
    for (; !data.empty(); data = data.subspan(std::min(slice_bytes(), data.size())))
      RETURN_IF_ERROR(peers_[peer].in->Recv(tag, data.first(std::min(slice_bytes(), data.size()))));
    return absl::OkStatus();
  };
  for (int round = 0; round < TournamentRounds(size()); ++round) {
    const int peer = TournamentPeer(size(), round, options_.index);
    if (peer < 0) continue;
    const auto [out, in] = plan(peer);
    const bool first = options_.index < peer;
    if (first) RETURN_IF_ERROR(send(peer, out));
    RETURN_IF_ERROR(receive(peer, in));
    if (!first) RETURN_IF_ERROR(send(peer, out));
  }
  return absl::OkStatus();
}

}  // namespace

int TournamentRounds(int size) { return size % 2 == 0 ? size - 1 : size; }

int TournamentPeer(int size, int round, int index) {
  // Indexes on a circle of odd length meet when they add up to the round. An index that would meet
  // itself meets the last index of an even group, which stands in the middle.
  const int circle = TournamentRounds(size);
  if (index == circle) {
    for (int peer = 0; peer < circle; ++peer) {
      if (2 * peer % circle == round % circle) return peer;
    }
  }
  const int peer = (round - index + 2 * circle) % circle;
  if (peer != index) return peer;
  return size % 2 == 0 ? size - 1 : -1;
}

absl::StatusOr<std::unique_ptr<Collective>> CreateCollective(Transport* transport,
                                                             CollectiveOptions options) {
  TAKT_CHECK(options.index >= 0 && options.index < static_cast<int>(options.ranks.size()));
  TAKT_CHECK(options.slice_bytes >= kDirectBytes && options.slice_bytes % 64 == 0);
  const bool large = options.ranks.size() > static_cast<std::size_t>(kMostDirectRanks);
  if (large && options.large_group != LargeGroup::kDirect)
    return CreateChainCollective(*transport, std::move(options));
  auto collective = std::make_unique<ChannelCollective>(std::move(options));
  if (collective->size() > 1) RETURN_IF_ERROR(collective->Open(*transport));
  return collective;
}

}  // namespace takt::transport
