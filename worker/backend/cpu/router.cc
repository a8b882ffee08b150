// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace takt::backend {
namespace {

constexpr std::int64_t kTokensPerPiece = 64;

// Calls body(token) for all tokens.
template <class Body>
void ForTokens(ThreadTeam& team, std::int64_t tokens, const Body& body) {
  team.ParallelFor((tokens + kTokensPerPiece - 1) / kTokensPerPiece, [&](std::int64_t piece, int) {
    const std::int64_t end = std::min(tokens, (piece + 1) * kTokensPerPiece);
    for (std::int64_t t = piece * kTokensPerPiece; t < end; ++t) body(t);
  });
}

// Returns the softmax of `logits`.
std::vector<double> Softmax(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  std::vector<double> shares(logits.size());
  double sum = 0;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    shares[e] = std::exp(static_cast<double>(logits[e]) - max);
    sum += shares[e];
  }
  for (double& share : shares) share /= sum;
  return shares;
}

// Writes the chosen experts in ascending order.
void Choose(std::span<const float> logits, std::span<std::int32_t> choices) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    // A logit that is not a number must not break the order. It counts as the lowest.
    const float x = logits[a], y = logits[b];
    if (std::isnan(x) || std::isnan(y))
      return std::isnan(x) == std::isnan(y) ? a < b : !std::isnan(x);
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + std::ssize(choices), order.end(), before);
  std::copy_n(order.begin(), choices.size(), choices.begin());
  std::ranges::sort(choices);
}

// Sorts the pairs by expert, those of one expert in ascending order.
void SortPairs(const RouteTokens& op) {
  const RouteTokens::Rows& rows = op.rows;
  const std::int64_t count = rows.tokens * rows.chosen;
  std::fill_n(rows.offsets, rows.experts + 1, 0);
  for (std::int64_t pair = 0; pair < count; ++pair) ++rows.offsets[op.choices[pair] + 1];
  std::partial_sum(rows.offsets, rows.offsets + rows.experts + 1, rows.offsets);
  std::vector<std::int32_t> next(rows.offsets, rows.offsets + rows.experts);
  for (std::int64_t pair = 0; pair < count; ++pair)
    rows.pairs[next[op.choices[pair]]++] = static_cast<std::int32_t>(pair);
}

// Returns the gradient of the auxiliary loss by the softmax of each expert, for each sequence:
// [sequences, E]. It is empty without that loss.
std::vector<double> AuxiliaryGradients(const RouteTokensBackward& op) {
  if (op.auxiliary_scale == 0) return {};
  const std::int64_t experts = op.rows.experts, pairs = op.context * op.rows.chosen;
  std::vector<double> gradients((op.rows.tokens / op.context) * experts);
  for (std::int64_t pair = 0; pair < op.rows.count(); ++pair)
    ++gradients[pair / pairs * experts + op.choices[pair]];
  // f_e is the count over `pairs`, and the mean of P_e is over `context` tokens.
  const double scale = op.auxiliary_scale * static_cast<double>(experts) /
                       (static_cast<double>(pairs) * static_cast<double>(op.context));
  for (double& gradient : gradients) gradient *= scale;
  return gradients;
}

// Returns d_logits for the gradient `d` by the softmax of the same logits.
void ThroughSoftmax(std::span<const double> softmax, std::span<double> d) {
  const double mean = std::inner_product(softmax.begin(), softmax.end(), d.begin(), 0.0);
  for (std::size_t e = 0; e < d.size(); ++e) d[e] = softmax[e] * (d[e] - mean);
}

}  // namespace

void Route(const RouteTokens& op, ThreadTeam& team) {
  const auto experts = static_cast<std::size_t>(op.rows.experts);
  const auto chosen = static_cast<std::size_t>(op.rows.chosen);
  ForTokens(team, op.rows.tokens, [&](std::int64_t t) {
    const std::span<const float> logits(op.logits + t * op.rows.experts, experts);
    const std::span<std::int32_t> choices(op.choices + t * op.rows.chosen, chosen);
    Choose(logits, choices);
    const std::vector<double> softmax = Softmax(logits);
    double sum = 0;
    for (const std::int32_t e : choices) sum += softmax[e];
    float* const weights = op.weights + t * op.rows.chosen;
    for (std::size_t j = 0; j < chosen; ++j) {
      const double share = softmax[choices[j]];
      weights[j] = static_cast<float>(op.normalised ? share / sum : share);
    }
  });
  SortPairs(op);
}

void RouteBackward(const RouteTokensBackward& op, ThreadTeam& team) {
  const std::vector<double> auxiliary = AuxiliaryGradients(op);
  const std::int64_t experts = op.rows.experts, chosen = op.rows.chosen;
  ForTokens(team, op.rows.tokens, [&](std::int64_t t) {
    const std::vector<double> softmax =
        Softmax({op.logits + t * experts, static_cast<std::size_t>(experts)});
    const std::int32_t* const choices = op.choices + t * chosen;
    const float* const d_weights = op.d_weights + t * chosen;
    std::vector<double> d(softmax.size());
    if (!auxiliary.empty())
      std::copy_n(auxiliary.begin() + t / op.context * experts, experts, d.begin());
    if (!op.normalised) {
      for (std::int64_t j = 0; j < chosen; ++j) d[choices[j]] += d_weights[j];
    }
    ThroughSoftmax(softmax, d);
    if (op.normalised) {
      // The weights are the softmax of the chosen logits alone.
      double sum = 0, mean = 0;
      for (std::int64_t j = 0; j < chosen; ++j) sum += softmax[choices[j]];
      for (std::int64_t j = 0; j < chosen; ++j) mean += softmax[choices[j]] / sum * d_weights[j];
      for (std::int64_t j = 0; j < chosen; ++j)
        d[choices[j]] += softmax[choices[j]] / sum * (d_weights[j] - mean);
    }
    std::ranges::transform(d, op.d_logits + t * experts,
                           [](double x) { return static_cast<float>(x); });
  });
}

}  // namespace takt::backend
