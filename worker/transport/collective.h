// SPDX-License-Identifier: Apache-2.0
// Sums over a group of ranks, and bytes that pass between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "worker/backend/stream.h"

namespace takt::transport {

// The largest message of a sum, in bytes, by default.
inline constexpr std::size_t kSliceBytes = 512 * 1024;

// Says which ranks of a large group connect.
enum class LargeGroup : std::uint8_t {
  kDirect,  // each with each
  // Each rank connects with its neighbours. AllGather, Pass, Broadcast and ReduceScatterTree return
  // kUnimplemented.
  kChain,
  // The ranks connect as in a chain, and the last one with the first. So AllGather works.
  kRing
};

struct CollectiveOptions {
  // The name of the group. It is the same on all ranks of the group, and two groups that share two
  // ranks have different names.
  std::string name;
  std::vector<Rank> ranks;      // in the order of summation; at least one
  int index = 0;                // of this rank in `ranks`
  std::int64_t generation = 0;  // goes into the tags of messages
  // Says how a group of more than kMostDirectRanks connects. It is the same on all its ranks.
  LargeGroup large_group = LargeGroup::kDirect;
  // The largest message of a sum, in bytes: a multiple of 64, at least kDirectBytes. It is the same
  // on all ranks of the group, and no sum depends on it.
  std::size_t slice_bytes = kSliceBytes;
};

// Adds values of the ranks of a group in rank order, so that the result has the same bits on every
// rank and in every run, and passes bytes unchanged. All ranks make the same calls in the same
// order. Thread: one caller at a time per object.  Errors: as the transport's.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int size() const = 0;
  virtual int index() const = 0;  // of this rank in the group
  // Replaces element i by ((x0 + x1) + x2) + ... by group rank. Floats lie in device memory if the
  // group is one of devices; doubles always lie in host memory.
  virtual absl::Status AllReduceSum(StepId step, std::span<float> data) = 0;
  virtual absl::Status AllReduceSum(StepId step, std::span<double> data) = 0;

  // Says what each rank brings for a value: the value alone, or several terms. All ranks bring
  // equally many.
  struct Terms {
    int count = 1;
    std::size_t stride = 0;  // in floats
    // So many neighbouring ranks take turns: first each has its first term added, then each its
    // second one. It divides the number of ranks.
    int in_turns = 1;

    // Says whose term is added at a place of the order, and which of its terms.
    struct Turn {
      int rank, term;
    };
    Turn At(int place) const {
      const int round = place / in_turns, ranks = round / count * in_turns;
      return {ranks + place % in_turns, round % count};
    }
    // Returns term `index` of the values that begin here. The last one is in their place, and the
    // others lie behind them.
    template <class T>
    T* Of(T* values, int index) const {
      return index + 1 == count ? values : values + stride * static_cast<std::size_t>(index + 1);
    }
  };
  // Adds as AllReduceSum does, but all terms one by one: those of rank 0, then those of rank 1, and
  // so on, but for ranks that take turns. Afterwards all terms but the last mean nothing.
  // Errors: also kUnimplemented, for several terms in a group without a way of its own, and for
  // turns in a group whose ranks are not connected with each other.
  virtual absl::Status AllReduceTerms(StepId step, std::span<float> data, const Terms& terms);

  // The parts of one piece of data, by rank of the group. They lie where floats of AllReduceSum do.
  // Part i has the same length on every rank, which may be 0.
  using Parts = std::span<const std::span<float>>;
  // Adds as AllReduceSum does, but each part only for its rank: afterwards parts[index()] has the
  // sums, and the other parts mean nothing. A group without a way of its own adds every part on
  // every rank.
  virtual absl::Status ReduceScatterSum(StepId step, Parts parts);
  // Does the same with terms as AllReduceTerms adds them.
  virtual absl::Status ReduceScatterTerms(StepId step, Parts parts, const Terms& terms);
  // Does the same in another order, along a binary tree over the ranks: (x0 + x1) + (x2 + x3) for
  // four. If each rank brings the sum of equally many leaves, added along such a tree
  // (common/model/tree_sum.h), the bits depend on the leaves alone and not on the number of ranks.
  // Precondition: the number of ranks is a power of two, at most kMostInTree.
  // Errors: also kUnimplemented, as Pass, for a group without a way of its own.
  virtual absl::Status ReduceScatterTree(StepId step, Parts parts);
  static constexpr int kMostInTree = 1024;

  // Passes bytes in the same kind of memory as the floats of AllReduceSum: sent[i] to rank i of the
  // group, and what that rank sends here to received[i]. Both ends know each length, and nothing
  // passes where it is 0. A rank's own entries are ignored.
  // Errors: also kUnimplemented (not all ranks are connected with each other).
  using Sent = std::span<const std::span<const std::byte>>;
  using Received = std::span<const std::span<std::byte>>;
  virtual absl::Status Pass(StepId step, Sent sent, Received received);
  // The calls below are made of Pass, except where neighbours alone are connected. `root` is an
  // index in the group.
  // Copies `data` of the root to every rank.
  absl::Status Broadcast(StepId step, int root, std::span<std::byte> data);
  // Copies part i of rank i to every rank. Every rank knows the length of each part.
  virtual absl::Status AllGather(StepId step, Received parts);
  absl::Status AllGatherParts(StepId step, Parts parts);
  // Copies `mine` of each other rank i to parts[i] of the root. Only the root has `parts`.
  virtual absl::Status SendTo(StepId step, int root, std::span<const std::byte> mine,
                              Received parts);

  // Returns the stream on which all calls are enqueued, except sums of doubles. Null: calls are
  // done when they return.
  virtual backend::Stream* stream() { return nullptr; }
};

}  // namespace takt::transport
