// SPDX-License-Identifier: Apache-2.0
#include "common/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "common/base/status.h"
#include "common/config/job_spec.h"

namespace takt::data {
namespace {

using config::kLongestMixtureCycle;

// Returns the rows of each corpus in a cycle of `length` if all shares are whole there, else
// nothing.
std::vector<int> WholeRows(const std::vector<double>& shares, int length) {
  constexpr double kRounding = 1e-12;  // error of the shares, which are quotients of doubles
  std::vector<int> rows;
  for (const double share : shares) {
    const double exact = share * length, whole = std::round(exact);
    if (whole < 1 || std::abs(exact - whole) > kRounding * length) return {};
    rows.push_back(static_cast<int>(whole));
  }
  return rows;
}

std::vector<int> RoundedRows(const std::vector<double>& shares, int length) {
  std::vector<int> rows, by_remainder(shares.size());
  for (const double share : shares) rows.push_back(static_cast<int>(share * length));
  std::iota(by_remainder.begin(), by_remainder.end(), 0);
  std::stable_sort(by_remainder.begin(), by_remainder.end(), [&](int a, int b) {
    return shares[a] * length - rows[a] > shares[b] * length - rows[b];
  });
  const int missing = length - std::accumulate(rows.begin(), rows.end(), 0);
  for (int i = 0; i < missing; ++i) ++rows[by_remainder[i % by_remainder.size()]];
  return rows;
}

}  // namespace

std::vector<int> RowsInCycle(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares;
  for (const double weight : weights) {
    shares.push_back(weight / sum);
    TAKT_CHECK(shares.back() * kLongestMixtureCycle >= 1);
  }
  for (auto length = static_cast<int>(shares.size()); length <= kLongestMixtureCycle; ++length) {
    std::vector<int> rows = WholeRows(shares, length);
    if (!rows.empty()) return rows;
  }
  return RoundedRows(shares, kLongestMixtureCycle);
}

Mixture::Mixture(const std::vector<MixedCorpus>& corpora, bool shuffle, std::uint64_t seed) {
  TAKT_CHECK(!corpora.empty());
  std::vector<double> weights;
  for (const MixedCorpus& corpus : corpora) {
    orders_.emplace_back(corpus.num_windows, shuffle, seed + weights.size());
    weights.push_back(corpus.weight);
  }
  rows_in_cycle_ = RowsInCycle(weights);
  for (int corpus = 0; corpus < std::ssize(corpora); ++corpus) {
    for (int j = 0; j < rows_in_cycle_[corpus]; ++j) {
      cycle_.push_back({.corpus = corpus, .before = j});
    }
  }
  // The sort is stable, so at one place the corpus listed first comes first.
  std::stable_sort(cycle_.begin(), cycle_.end(), [this](const Turn& a, const Turn& b) {
    return std::int64_t{2 * a.before + 1} * rows_in_cycle_[b.corpus] <
           std::int64_t{2 * b.before + 1} * rows_in_cycle_[a.corpus];
  });
}

Draw Mixture::At(std::int64_t position) const {
  const Turn& turn = cycle_[position % std::ssize(cycle_)];
  const std::int64_t row =
      position / std::ssize(cycle_) * rows_in_cycle_[turn.corpus] + turn.before;
  return {.corpus = turn.corpus, .window = orders_[turn.corpus].WindowAt(row)};
}

std::int64_t Mixture::RowsBefore(int corpus, std::int64_t position) const {
  const std::int64_t length = std::ssize(cycle_);
  const auto end = cycle_.begin() + position % length;
  return position / length * rows_in_cycle_[corpus] +
         std::count_if(cycle_.begin(), end,
                       [corpus](const Turn& turn) { return turn.corpus == corpus; });
}

std::int64_t Mixture::MostRows(int corpus, std::int64_t num_rows) const {
  // Slides a window of rows over one cycle: each move removes its first row and adds the next one.
  std::int64_t rows = RowsBefore(corpus, num_rows), most = rows;
  for (std::int64_t first = 0; first < std::ssize(cycle_); ++first) {
    const Turn& gained = cycle_[(first + num_rows) % std::ssize(cycle_)];
    rows += static_cast<int>(gained.corpus == corpus) -
            static_cast<int>(cycle_[first].corpus == corpus);
    most = std::max(most, rows);
  }
  return most;
}

}  // namespace takt::data
