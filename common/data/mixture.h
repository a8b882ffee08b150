// SPDX-License-Identifier: Apache-2.0
// Says which window of which corpus each row of a run reads. Users rely on this order. It is a pure
// function of weights, sizes and seed, so any (step, rank) finds its data alone.
//
// Corpora take turns in a cycle of L rows, m_c of them from corpus c. L is the smallest number up
// to kLongestMixtureCycle for which every m_c = L * weight_c / sum is whole and at least 1; if
// there is none, it is kLongestMixtureCycle and shares are rounded by largest remainder. The j-th
// (from 0) of a corpus's rows stands at (2j+1) / (2 m_c) of the cycle. If two stand at the same
// place, the corpus listed first comes first. The k-th row of corpus c in the run is row k of its
// own order (window_order.h, with seed + c), so every n_c rows of it contain each of its windows
// once.
#pragma once

#include <cstdint>
#include <vector>

#include "common/data/window_order.h"

namespace takt::data {

struct MixedCorpus {
  std::int64_t num_windows = 1;
  double weight = 1;
};

struct Draw {
  int corpus = 0;
  std::int64_t window = 0;
  friend bool operator==(const Draw&, const Draw&) = default;
};

// Returns m_c of each corpus. Precondition: weights are finite and above 0, and each is at least
// 1 / kLongestMixtureCycle of their sum.
std::vector<int> RowsInCycle(const std::vector<double>& weights);

// Stateless and immutable: safe from any thread.
class Mixture {
 public:
  // Precondition: at least one corpus, and that of RowsInCycle.
  Mixture(const std::vector<MixedCorpus>& corpora, bool shuffle, std::uint64_t seed);

  // The window that is read at `position` of the run, counted from 0.
  Draw At(std::int64_t position) const;

  // The most rows of `corpus` among any `num_rows` consecutive ones.
  std::int64_t MostRows(int corpus, std::int64_t num_rows) const;

 private:
  struct Turn {
    int corpus = 0;
    int before = 0;  // earlier rows of this corpus in the cycle
  };
  std::int64_t RowsBefore(int corpus, std::int64_t position) const;

  std::vector<int> rows_in_cycle_;
  std::vector<Turn> cycle_;
  std::vector<WindowOrder> orders_;  // by corpus
};

}  // namespace takt::data
