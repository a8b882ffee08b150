// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/nccl/device_sums.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/base/status.h"

namespace takt::transport::nccl {
namespace {

class DeviceSums final : public Collective {
 public:
  explicit DeviceSums(DeviceSumsOptions options) : options_(std::move(options)) {}
  // Work on the stream uses our memory.
  ~DeviceSums() override {
    options_.backend->Synchronize().IgnoreError();
    Communicators::Forget(*options_.communicator);
  }

  // Connects every two ranks before any of them trains.
  absl::Status Open() {
    ASSIGN_OR_RETURN(scratch_,
                     options_.backend->Allocate(options_.scratch_bytes, MemoryKind::kMessages));
    return Exchange(
        [&](int peer) {
          const std::span<float> anything = Slot(peer);
          return Message(anything.first(1), anything.subspan(1, 1));
        },
        /*first=*/true);
  }

  int size() const override { return options_.host->size(); }
  int index() const override { return options_.index; }
  backend::Stream* stream() override { return options_.backend->stream(); }

  absl::Status AllReduceSum(StepId step, std::span<float> data) override {
    return AllReduceTerms(step, data, {});
  }
  absl::Status AllReduceTerms(StepId, std::span<float> data, const Terms& terms) override {
    const std::size_t round = TermFloats(terms) * static_cast<std::size_t>(size());
    for (; !data.empty(); data = data.subspan(std::min(round, data.size()))) {
      RETURN_IF_ERROR(Reduce(data.first(std::min(round, data.size())), terms));
    }
    return absl::OkStatus();
  }
  absl::Status AllReduceSum(StepId step, std::span<double> data) override {
    return options_.host->AllReduceSum(step, data);
  }
  absl::Status ReduceScatterSum(StepId step, Parts parts) override {
    return ReduceScatterTerms(step, parts, {});
  }
  absl::Status ReduceScatterTerms(StepId, Parts parts, const Terms& terms) override {
    return ReduceParts(parts, terms, [&](std::span<float> mine) { return Sum(mine, terms); });
  }
  absl::Status ReduceScatterTree(StepId, Parts parts) override {
    TAKT_CHECK(std::has_single_bit(static_cast<unsigned>(size())) && size() <= kMostInTree);
    return ReduceParts(parts, {}, [this](std::span<float> mine) { return SumAsTree(mine); });
  }
  absl::Status Pass(StepId, Sent sent, Received received) override {
    const auto ranks = static_cast<std::size_t>(size());
    TAKT_CHECK(sent.size() == ranks && received.size() == ranks);
    return Exchange([&](int peer) {
      return BothWays(sent[static_cast<std::size_t>(peer)],
                      received[static_cast<std::size_t>(peer)]);
    });
  }

 private:
  // What is sent to a rank, and where its message is put.
  using BothWays = std::pair<std::span<const std::byte>, std::span<std::byte>>;
  using Plan = absl::FunctionRef<BothWays(int peer)>;
  static BothWays Message(std::span<const float> out, std::span<float> in) {
    return {std::as_bytes(out), std::as_writable_bytes(in)};
  }

  absl::Status Reduce(std::span<float> data, const Terms& terms) {
    const auto slice = [&](int rank) {
      const auto n = static_cast<std::size_t>(size()), r = static_cast<std::size_t>(rank);
      const std::size_t begin = data.size() * r / n;
      return data.subspan(begin, data.size() * (r + 1) / n - begin);
    };
    RETURN_IF_ERROR(
        SumSlices(slice, terms, [&](std::span<float> mine) { return Sum(mine, terms); }));
    const std::span<float> mine = slice(options_.index);
    return Exchange([&](int peer) { return Message(mine, slice(peer)); });
  }

  // Adds our values of a slice and those of the others, which are in their slots.
  using Add = absl::FunctionRef<absl::Status(std::span<float> mine)>;

  absl::Status ReduceParts(Parts parts, const Terms& terms, Add add) {
    std::size_t longest = 0;
    for (const std::span<float> part : parts) longest = std::max(longest, part.size());
    const std::size_t most = TermFloats(terms);
    for (std::size_t begin = 0; begin < longest; begin += most) {
      const auto slice = [&](int rank) {
        const std::span<float> part = parts[static_cast<std::size_t>(rank)];
        const std::size_t from = std::min(begin, part.size());
        return part.subspan(from, std::min(most, part.size() - from));
      };
      RETURN_IF_ERROR(SumSlices(slice, terms, add));
    }
    return absl::OkStatus();
  }

  // Adds slice(i) of all ranks on rank i. Slices have at most TermFloats.
  absl::Status SumSlices(absl::FunctionRef<std::span<float>(int rank)> slice, const Terms& terms,
                         Add add) {
    const std::span<float> mine = slice(options_.index);
    for (int term = 0; term < terms.count; ++term) {
      RETURN_IF_ERROR(Exchange([&](int peer) {
        const std::span<float> sent = slice(peer);
        return Message(std::span(terms.Of(sent.data(), term), sent.size()),
                       TermSlot(peer, terms, term).first(mine.size()));
      }));
    }
    return mine.empty() ? absl::OkStatus() : add(mine);
  }

  // mine[i] = ((x0[i] + x1[i]) + x2[i]) + ..., with our own terms in their place among the others'.
  absl::Status Sum(std::span<float> mine, const Terms& terms) {
    const auto values = [&](int place) {
      const auto [rank, term] = terms.At(place);
      return rank == options_.index ? terms.Of(mine.data(), term)
                                    : TermSlot(rank, terms, term).data();
    };
    // A sum takes the place of the first term, which nobody reads again, and the last sum ours.
    const int places = size() * terms.count;
    const float* sum = values(0);
    for (int place = 1; place < places; ++place) {
      float* const output = place == places - 1 ? mine.data() : values(0);
      RETURN_IF_ERROR(
          options_.backend->Run(backend::Add{.a = sum,
                                             .b = values(place),
                                             .output = output,
                                             .count = static_cast<std::int64_t>(mine.size())}));
      sum = output;
    }
    return absl::OkStatus();
  }

  // Computes mine[i] = (x0[i] + x1[i]) + (x2[i] + x3[i]) for four ranks, and so on. Sums take the
  // place of their first addend, the last one that of our values.
  absl::Status SumAsTree(std::span<float> mine) {
    const auto values = [&](int rank) {
      return rank == options_.index ? mine.data() : Slot(rank).data();
    };
    for (int distance = 1; distance < size(); distance *= 2) {
      const bool last = 2 * distance == size();
      for (int rank = 0; rank < size(); rank += 2 * distance) {
        RETURN_IF_ERROR(
            options_.backend->Run(backend::Add{.a = values(rank),
                                               .b = values(rank + distance),
                                               .output = last ? mine.data() : values(rank),
                                               .count = static_cast<std::int64_t>(mine.size())}));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Exchange(Plan plan, bool first = false) {
    const Api& api = *options_.api;
    return options_.communicators->Give(
        *options_.communicator, *options_.backend->stream(),
        [&](Comm comm, NativeStream stream) {
          Result result = kSuccess;
          const auto keep = [&](Result next) {
            if (next != kSuccess && next != kInProgress) result = next;
          };
          for (int peer = 0; peer < size() && result == kSuccess; ++peer) {
            if (peer == options_.index) continue;
            const auto [out, in] = plan(peer);
            if (!out.empty()) keep(api.send(out.data(), out.size(), peer, comm, stream));
            if (!in.empty()) keep(api.recv(in.data(), in.size(), peer, comm, stream));
          }
          return result;
        },
        first);
  }

  // Returns the memory for what `rank` sends. There is none for this rank.
  std::span<float> Slot(int rank) {
    const auto place = static_cast<std::size_t>(rank < options_.index ? rank : rank - 1);
    return scratch_.float_span().subspan(place * SlotFloats(), SlotFloats());
  }

  // The terms of a slice share a slot.
  std::span<float> TermSlot(int rank, const Terms& terms, int term) {
    const std::size_t floats = TermFloats(terms);
    return Slot(rank).subspan(static_cast<std::size_t>(term) * floats, floats);
  }
  std::size_t TermFloats(const Terms& terms) const {
    return SlotFloats() / static_cast<std::size_t>(terms.count) / kLineFloats * kLineFloats;
  }

  // A slot has whole lines of the device's memory.
  static constexpr std::size_t kLineFloats = 64;

  std::size_t SlotFloats() const {
    const std::size_t others = static_cast<std::size_t>(size()) - 1;
    return options_.scratch_bytes / sizeof(float) / others / kLineFloats * kLineFloats;
  }

  const DeviceSumsOptions options_;
  backend::Buffer scratch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> CreateDeviceSums(DeviceSumsOptions options) {
  auto sums = std::make_unique<DeviceSums>(std::move(options));
  RETURN_IF_ERROR(sums->Open());
  return sums;
}

}  // namespace takt::transport::nccl
