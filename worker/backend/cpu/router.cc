// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
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

// Returns the sigmoid of each logit.
std::vector<double> Sigmoid(std::span<const float> logits) {
  std::vector<double> scores(logits.size());
  std::ranges::transform(logits, scores.begin(), [](float logit) {
    return 1 / (1 + std::exp(-static_cast<double>(logit)));
  });
  return scores;
}

// Returns the numbers by which experts are chosen, the largest first.
std::vector<double> Ranks(const RouteTokens& op, std::span<const float> logits,
                          std::span<const double> scores) {
  std::vector<double> ranks(logits.begin(), logits.end());
  if (op.sigmoid) {
    std::ranges::transform(scores, std::span(op.bias, ranks.size()), ranks.begin(),
                           std::plus<double>());
  }
  return ranks;
}

// Writes the chosen experts in ascending order.
void Choose(std::span<const double> ranks, std::span<std::int32_t> choices) {
  std::vector<std::int32_t> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int32_t a, std::int32_t b) {
    // A rank that is not a number must not break the order. It counts as the lowest.
    const double x = ranks[a], y = ranks[b];
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

// Returns the gradient of the auxiliary loss by the share that each expert has of the scores, for
// each sequence: [sequences, E]. It is empty without that loss.
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

// The factors of one token's gradient.
struct TokenGradient {
  std::span<const double> auxiliary = {};  // [E] of AuxiliaryGradients, or empty
  std::span<const std::int32_t> choices = {};
  const float* d_weights = nullptr;  // [k]
  bool normalised = false;
};

// Returns the mean of the gradients by weight, each weighted by it. sum: of the chosen scores.
double MeanOfWeights(std::span<const double> scores, double sum, const TokenGradient& token) {
  double mean = 0;
  for (std::size_t j = 0; j < token.choices.size(); ++j)
    mean += scores[token.choices[j]] / sum * token.d_weights[j];
  return mean;
}

// Returns d_logits of one token.
std::vector<double> SoftmaxGradient(std::span<const float> logits, const TokenGradient& token) {
  const std::vector<double> softmax = Softmax(logits);
  std::vector<double> d(softmax.size());
  std::ranges::copy(token.auxiliary, d.begin());
  if (!token.normalised) {
    for (std::size_t j = 0; j < token.choices.size(); ++j)
      d[token.choices[j]] += token.d_weights[j];
  }
  ThroughSoftmax(softmax, d);
  if (!token.normalised) return d;
  // The weights are the softmax of the chosen logits alone.
  double sum = 0;
  for (const std::int32_t e : token.choices) sum += softmax[e];
  const double mean = MeanOfWeights(softmax, sum, token);
  for (std::size_t j = 0; j < token.choices.size(); ++j)
    d[token.choices[j]] += softmax[token.choices[j]] / sum * (token.d_weights[j] - mean);
  return d;
}

std::vector<double> SigmoidGradient(std::span<const float> logits, const TokenGradient& token) {
  const std::vector<double> scores = Sigmoid(logits);
  std::vector<double> d(scores.size());
  if (!token.auxiliary.empty()) {
    const double sum = std::accumulate(scores.begin(), scores.end(), kLeastScoreSum);
    const double mean =
        std::inner_product(scores.begin(), scores.end(), token.auxiliary.begin(), 0.0) / sum;
    for (std::size_t e = 0; e < d.size(); ++e) d[e] = (token.auxiliary[e] - mean) / sum;
  }
  double sum = kLeastScoreSum;
  for (const std::int32_t e : token.choices) sum += scores[e];
  const double mean = token.normalised ? MeanOfWeights(scores, sum, token) : 0;
  for (std::size_t j = 0; j < token.choices.size(); ++j)
    d[token.choices[j]] += (token.d_weights[j] - mean) / (token.normalised ? sum : 1);
  for (std::size_t e = 0; e < d.size(); ++e) d[e] *= scores[e] * (1 - scores[e]);
  return d;
}

}  // namespace

void Route(const RouteTokens& op, ThreadTeam& team) {
  const auto experts = static_cast<std::size_t>(op.rows.experts);
  const auto chosen = static_cast<std::size_t>(op.rows.chosen);
  ForTokens(team, op.rows.tokens, [&](std::int64_t t) {
    const std::span<const float> logits(op.logits + t * op.rows.experts, experts);
    const std::span<std::int32_t> choices(op.choices + t * op.rows.chosen, chosen);
    const std::vector<double> scores = op.sigmoid ? Sigmoid(logits) : Softmax(logits);
    Choose(Ranks(op, logits, scores), choices);
    double sum = op.sigmoid ? kLeastScoreSum : 0;
    for (const std::int32_t e : choices) sum += scores[e];
    float* const weights = op.weights + t * op.rows.chosen;
    for (std::size_t j = 0; j < chosen; ++j) {
      const double score = scores[choices[j]];
      weights[j] = static_cast<float>(op.normalised ? score / sum : score);
    }
  });
  SortPairs(op);
}

void RouteBackward(const RouteTokensBackward& op, ThreadTeam& team) {
  const std::vector<double> auxiliary = AuxiliaryGradients(op);
  const auto experts = static_cast<std::size_t>(op.rows.experts);
  const auto chosen = static_cast<std::size_t>(op.rows.chosen);
  ForTokens(team, op.rows.tokens, [&](std::int64_t t) {
    const std::span<const float> logits(op.logits + t * op.rows.experts, experts);
    TokenGradient token{.choices = {op.choices + t * op.rows.chosen, chosen},
                        .d_weights = op.d_weights + t * op.rows.chosen,
                        .normalised = op.normalised};
    if (!auxiliary.empty())
      token.auxiliary = std::span(auxiliary).subspan(t / op.context * op.rows.experts, experts);
    const std::vector<double> d =
        op.sigmoid ? SigmoidGradient(logits, token) : SoftmaxGradient(logits, token);
    std::ranges::transform(d, op.d_logits + t * op.rows.experts,
                           [](double x) { return static_cast<float>(x); });
  });
}

}  // namespace takt::backend
