// SPDX-License-Identifier: Apache-2.0
// The router of a mixture of experts. It chooses the experts of each token, sorts the rows by
// expert and then by token, and computes the gradient of the logits.
//
// A token has a warp, which computes in double as the CPU does. Rows are sorted by counting: a
// block goes through all choices and takes those of its expert in order, so the order needs no
// atomics and is the same on every run.
#include <cfloat>
#include <cmath>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kTokensOfBlock = 4;
constexpr int kTokenThreads = kTokensOfBlock * kWarpSize;

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }

// Returns the token of the warp.
__device__ inline std::int64_t TokenOfWarp() {
  return static_cast<std::int64_t>(blockIdx.x) * kTokensOfBlock + threadIdx.x / kWarpSize;
}

// The scores of the experts of one token.
struct Scores {
  const float* logits;  // [experts]
  int experts;
  bool sigmoid;
  double max, sum;  // of the softmax

  __device__ double Of(int expert) const {
    const double logit = logits[expert];
    return sigmoid ? 1 / (1 + exp(-logit)) : exp(logit - max) / sum;
  }
};

// All lanes of the warp call it together.
__device__ inline Scores ScoresOf(const float* logits, int experts, bool sigmoid) {
  Scores scores = {logits, experts, sigmoid, 0, 1};
  if (sigmoid) return scores;
  float max = -FLT_MAX;
  for (int e = Lane(); e < experts; e += kWarpSize) max = fmaxf(max, logits[e]);
  scores.max = WarpMax(max);
  double sum = 0;
  for (int e = Lane(); e < experts; e += kWarpSize)
    sum += exp(static_cast<double>(logits[e]) - scores.max);
  scores.sum = WarpSum(sum);
  return scores;
}

// An expert, and its key: a token chooses the experts with the largest keys.
struct Candidate {
  double key = 0;
  int expert = -1;  // negative: there is none
};

// Returns whether a token chooses `a` before `b`: it has the larger key or, with equal keys, the
// lower number. A key that is not a number counts as the lowest. An empty candidate comes last.
__device__ inline bool Before(const Candidate& a, const Candidate& b) {
  if (a.expert < 0 || b.expert < 0) return b.expert < 0 && a.expert >= 0;
  const bool a_is_number = a.key == a.key, b_is_number = b.key == b.key;
  if (a_is_number != b_is_number) return a_is_number;
  if (!a_is_number || a.key == b.key) return a.expert < b.expert;
  return a.key > b.key;
}

__device__ inline Candidate FirstOfWarp(Candidate first) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const Candidate other = {__shfl_xor_sync(kAllLanes, first.key, distance),
                             __shfl_xor_sync(kAllLanes, first.expert, distance)};
    if (Before(other, first)) first = other;
  }
  return first;
}

// Orders the experts of one token.
struct Ranking {
  const Scores& scores;
  const float* bias;  // set if scores are sigmoids

  __device__ Candidate Of(int expert) const {
    const double key = scores.sigmoid ? scores.Of(expert) + bias[expert] : scores.logits[expert];
    return {key, expert};
  }
  // Returns the last of the experts that the token chooses.
  __device__ Candidate LastOf(int chosen) const {
    Candidate last;
    for (int round = 0; round < chosen; ++round) {
      Candidate next;
      for (int e = Lane(); e < scores.experts; e += kWarpSize) {
        const Candidate candidate = Of(e);
        if (round > 0 && !Before(last, candidate)) continue;  // it is chosen already
        if (Before(candidate, next)) next = candidate;
      }
      last = FirstOfWarp(next);
    }
    return last;
  }
};

// Writes the choices of each token in ascending order, and their weights.
__global__ __launch_bounds__(kTokenThreads) void ChooseKernel(RouteTokens op) {
  const std::int64_t token = TokenOfWarp();
  if (token >= op.rows.tokens) return;
  const auto experts = static_cast<int>(op.rows.experts), chosen = static_cast<int>(op.rows.chosen);
  const Scores scores = ScoresOf(op.logits + token * experts, experts, op.sigmoid);
  const Ranking ranking = {scores, op.bias};
  const Candidate last = ranking.LastOf(chosen);
  std::int32_t* choices = op.choices + token * chosen;
  int place = 0;
  for (int begin = 0; begin < experts; begin += kWarpSize) {
    const int e = begin + Lane();
    const bool is_chosen = e < experts && !Before(last, ranking.Of(e));
    const unsigned bit = 1U << static_cast<unsigned>(Lane());
    const unsigned taken = WarpSum(is_chosen ? bit : 0U);
    if (is_chosen) choices[place + __popc(taken & (bit - 1))] = e;
    place += __popc(taken);
  }
  __syncwarp();  // lanes read the choices that others wrote
  double sum = 0;
  for (int j = Lane(); j < chosen; j += kWarpSize) sum += scores.Of(choices[j]);
  sum = WarpSum(sum) + (op.sigmoid ? kLeastScoreSum : 0);
  for (int j = Lane(); j < chosen; j += kWarpSize) {
    const double score = scores.Of(choices[j]);
    op.weights[token * chosen + j] = static_cast<float>(op.normalised ? score / sum : score);
  }
}

constexpr int kThreads = 256;

// Each block counts the choices of one expert in one section of pairs: counts[sections, experts].
struct CountShared {
  std::int32_t sums[kThreads / kWarpSize];
};
__global__ __launch_bounds__(kThreads) void CountChoicesKernel(const std::int32_t* choices,
                                                               std::int64_t pairs_of_section,
                                                               std::int64_t experts,
                                                               std::int32_t* counts) {
  const std::int64_t block = blockIdx.x;
  const std::int32_t* section = choices + block / experts * pairs_of_section;
  const auto expert = static_cast<std::int32_t>(block % experts);
  std::int32_t count = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < pairs_of_section; i += kThreads)
    count += section[i] == expert ? 1 : 0;
  count = TeamSum<kThreads>(count, Shared<CountShared>().sums);
  if (threadIdx.x == 0) counts[block] = count;
}

// Each block places the pairs of one expert. Each of its threads has a run of all pairs.
struct PlaceShared {
  std::int32_t sums[kThreads / kWarpSize];
  std::int32_t of_run[kThreads];
};
__global__ __launch_bounds__(kThreads) void PlacePairsKernel(RouteTokens op,
                                                             const std::int32_t* counts) {
  auto& shared = Shared<PlaceShared>();
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t row = 0;
  for (std::int32_t e = thread; e < expert; e += kThreads) row += counts[e];
  row = TeamSum<kThreads>(row, shared.sums);
  if (thread == 0) {
    if (expert == 0) op.rows.offsets[0] = 0;
    op.rows.offsets[expert + 1] = row + counts[expert];
  }
  const std::int64_t pairs = op.rows.tokens * op.rows.chosen;
  const std::int64_t run = CeilDiv(pairs, kThreads), begin = thread * run;
  const std::int64_t end = begin + run < pairs ? begin + run : pairs;
  std::int32_t own = 0;
#pragma unroll 4
  for (std::int64_t i = begin; i < end; ++i) own += op.choices[i] == expert ? 1 : 0;
  shared.of_run[thread] = own;
  __syncthreads();
  for (std::int32_t t = 0; t < thread; ++t) row += shared.of_run[t];
  if (own == 0) return;
  for (std::int64_t i = begin; i < end; ++i) {
    if (op.choices[i] == expert) op.rows.pairs[row++] = static_cast<std::int32_t>(i);
  }
}

// Sums over the experts of one token. The gradient of an expert's logit depends on these and on the
// expert's own numbers.
struct TokenSums {
  double chosen;    // of the chosen scores
  double weighted;  // of the chosen scores, each times the gradient by its weight
  // Of all scores, and of each times the gradient of the auxiliary loss by its share. Both are 0
  // without that loss.
  double all, auxiliary;
};

// The numbers of one expert of a token.
struct ExpertNumbers {
  double score, auxiliary;
  double d_weight;  // 0 if it is not chosen
  bool chosen;
};

// The weights are shares of the softmax over all logits or, if they are normalised, the softmax of
// the chosen logits alone.
__device__ inline double SoftmaxGradient(const ExpertNumbers& e, const TokenSums& sums,
                                         bool normalised) {
  const double by_share = normalised ? e.auxiliary : e.auxiliary + e.d_weight;
  const double mean = normalised ? sums.auxiliary : sums.auxiliary + sums.weighted;
  const double d = e.score * (by_share - mean);
  if (!normalised || !e.chosen) return d;
  return d + e.score / sums.chosen * (e.d_weight - sums.weighted / sums.chosen);
}

__device__ inline double SigmoidGradient(const ExpertNumbers& e, const TokenSums& sums,
                                         bool normalised) {
  double d = 0;
  if (sums.all > 0) d = (e.auxiliary - sums.auxiliary / sums.all) / sums.all;
  if (e.chosen)
    d += normalised ? (e.d_weight - sums.weighted / sums.chosen) / sums.chosen : e.d_weight;
  return d * e.score * (1 - e.score);
}

// counts: of the choices of each sequence; null: there is no auxiliary loss. A count times
// count_scale is the gradient of that loss by the expert's share of the scores.
__global__ __launch_bounds__(kTokenThreads) void RouteBackwardKernel(RouteTokensBackward op,
                                                                     const std::int32_t* counts,
                                                                     double count_scale) {
  const std::int64_t token = TokenOfWarp();
  if (token >= op.rows.tokens) return;
  const auto experts = static_cast<int>(op.rows.experts), chosen = static_cast<int>(op.rows.chosen);
  const Scores scores = ScoresOf(op.logits + token * experts, experts, op.sigmoid);
  const std::int32_t* choices = op.choices + token * chosen;
  const float* d_weights = op.d_weights + token * chosen;
  if (counts != nullptr) counts += token / op.context * experts;
  TokenSums sums = {};
  for (int j = Lane(); j < chosen; j += kWarpSize) {
    const double score = scores.Of(choices[j]);
    sums.chosen += score;
    sums.weighted += score * d_weights[j];
  }
  if (counts != nullptr) {
    for (int e = Lane(); e < experts; e += kWarpSize) {
      const double score = scores.Of(e);
      sums.all += score;
      sums.auxiliary += score * (counts[e] * count_scale);
    }
  }
  const double least = op.sigmoid ? kLeastScoreSum : 0;
  sums = {WarpSum(sums.chosen) + least, WarpSum(sums.weighted),
          counts != nullptr ? WarpSum(sums.all) + least : 0, WarpSum(sums.auxiliary)};
  __syncwarp();  // the gradients may take the place of the logits, which all lanes have read
  int j = 0;
  for (int e = Lane(); e < experts; e += kWarpSize) {
    while (j < chosen && choices[j] < e) ++j;
    const bool is_chosen = j < chosen && choices[j] == e;
    const ExpertNumbers numbers = {scores.Of(e), counts != nullptr ? counts[e] * count_scale : 0,
                                   is_chosen ? static_cast<double>(d_weights[j]) : 0, is_chosen};
    const double d = op.sigmoid ? SigmoidGradient(numbers, sums, op.normalised)
                                : SoftmaxGradient(numbers, sums, op.normalised);
    op.d_logits[token * experts + e] = static_cast<float>(d);
  }
}

void CountChoices(const std::int32_t* choices, std::int64_t pairs_of_section, std::int64_t experts,
                  std::int64_t sections, const LaunchContext& context) {
  LaunchKernel(CountChoicesKernel,
               Blocks{{static_cast<unsigned>(sections * experts)}, kThreads, sizeof(CountShared)},
               context.stream, choices, pairs_of_section, experts,
               static_cast<std::int32_t*>(context.scratch));
}

Blocks BlocksOfTokens(std::int64_t tokens) {
  return {{static_cast<unsigned>(CeilDiv(tokens, kTokensOfBlock))}, kTokenThreads};
}

}  // namespace

void Launch(const RouteTokens& op, const LaunchContext& context) {
  LaunchKernel(ChooseKernel, BlocksOfTokens(op.rows.tokens), context.stream, op);
  CountChoices(op.choices, op.rows.tokens * op.rows.chosen, op.rows.experts, /*sections=*/1,
               context);
  LaunchKernel(PlacePairsKernel,
               Blocks{{static_cast<unsigned>(op.rows.experts)}, kThreads, sizeof(PlaceShared)},
               context.stream, op, static_cast<const std::int32_t*>(context.scratch));
}

void Launch(const RouteTokensBackward& op, const LaunchContext& context) {
  const std::int32_t* counts = nullptr;
  const std::int64_t pairs = op.context * op.rows.chosen;
  if (op.auxiliary_scale != 0) {
    CountChoices(op.choices, pairs, op.rows.experts, op.rows.tokens / op.context, context);
    counts = static_cast<const std::int32_t*>(context.scratch);
  }
  // The share of an expert is its count over `pairs`, and the mean of scores is over the tokens.
  const double count_scale = op.auxiliary_scale * static_cast<double>(op.rows.experts) /
                             (static_cast<double>(pairs) * static_cast<double>(op.context));
  LaunchKernel(RouteBackwardKernel, BlocksOfTokens(op.rows.tokens), context.stream, op, counts,
               count_scale);
}

}  // namespace takt::backend::cuda
