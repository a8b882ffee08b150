// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/chain_collective.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/transport/channel_collective.h"

namespace takt::transport {

namespace {

// These are values of MessageTag::direction, as those in channel_collective.cc.
enum Phase : std::int32_t { kUp = 20, kDown = 21 };

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

 private:
  struct Neighbour {
    std::unique_ptr<SendChannel> out;
    std::unique_ptr<RecvChannel> in;
  };

  bool is_first() const { return options_.index == 0; }
  bool is_last() const { return options_.index + 1 == size(); }

  // Opens both directions to the rank behind this one, or before it.
  absl::Status Meet(Transport& transport, bool behind);

  template <class T>
  absl::Status Reduce(StepId step, std::span<T> data, const Terms& terms);

  const CollectiveOptions options_;
  Neighbour before_, behind_;
  std::vector<std::byte> received_;  // a slice
  std::int32_t sequence_ = 0;
};

// Every rank meets at most one other at a time: those at even places the rank behind them first,
// those at odd places the rank before them.
absl::Status ChainCollective::Open(Transport& transport) {
  const bool behind_first = options_.index % 2 == 0;
  for (const bool behind : {behind_first, !behind_first}) {
    if (behind ? is_last() : is_first()) continue;
    RETURN_IF_ERROR(Meet(transport, behind));
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
absl::Status ChainCollective::Reduce(StepId step, std::span<T> data, const Terms& terms) {
  const std::size_t most = options_.slice_bytes / sizeof(T);
  MessageTag tag{.generation = options_.generation,
                 .step = step.value(),
                 .direction = kUp,
                 .sequence = sequence_++};
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
  tag.direction = kDown;
  for (std::size_t begin = 0; begin < data.size(); begin += most) {
    const std::span<T> slice = data.subspan(begin, std::min(most, data.size() - begin));
    if (!is_last()) RETURN_IF_ERROR(behind_.in->Recv(tag, std::as_writable_bytes(slice)));
    if (!is_first()) RETURN_IF_ERROR(before_.out->Send(tag, std::as_bytes(slice)));
  }
  return absl::OkStatus();
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
