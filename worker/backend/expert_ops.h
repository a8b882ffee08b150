// SPDX-License-Identifier: Apache-2.0
// Has the operations of a mixture of experts: an MLP of which each token uses `chosen` of `experts`
// parts. The rules of ops.h hold here too.
//
// Letters: N tokens, E experts, k experts a token, C hidden, F width of an expert.
//
// A *pair* is a token and one of its experts. Pair t * k + j is token t with its j-th expert; the
// experts of a token are in ascending order. A mixture has a *row* for each pair, so it has N * k
// rows whatever the router chooses, and drops none. Rows are sorted by expert, and those of one
// expert by token. So the results of a microbatch depend on its own tokens alone.
#pragma once

#include <cstdint>
#include <span>

#include "worker/backend/operand.h"

namespace takt::backend {

// Says which rows there are, as RouteTokens writes it.
struct ExpertRows {
  const std::int32_t* offsets = nullptr;  // [E+1]: expert e has the rows offsets[e] .. [e+1] - 1
  const std::int32_t* pairs = nullptr;    // [N*k]: the pair of each row
  std::int64_t tokens = 0, experts = 0, chosen = 0;  // N, E, k

  std::int64_t count() const { return tokens * chosen; }
};

// Chooses the k experts of each token that have the largest logits; of equal ones, those with the
// lower numbers. The weight of an expert is its score, which is its share of the softmax over all
// logits of the token, divided by the sum of the chosen ones' scores if `normalised`. It is
// computed in double. sigmoid: a score is the sigmoid of the expert's logit instead, and those with
// the largest sums of score and bias are chosen (DeepSeek-V3, 2024, section 2.1.2). The bias is not
// in the weight.
struct RouteTokens {
  // What it writes, under the names by which other ops read it.
  struct Rows {
    std::int32_t* offsets = nullptr;                   // [E+1]
    std::int32_t* pairs = nullptr;                     // [N*k]
    std::int64_t tokens = 0, experts = 0, chosen = 0;  // N, E, k
  };
  Rows rows;
  const float* logits = nullptr;    // [N,E]
  std::int32_t* choices = nullptr;  // [N*k]: the expert of each pair
  float* weights = nullptr;         // [N*k]: of each pair
  const float* bias = nullptr;      // [E], set with `sigmoid` alone
  bool normalised = false;
  bool sigmoid = false;
};

// Added to the sum of the chosen sigmoids, which may all be 0.
inline constexpr double kLeastScoreSum = 1e-20;

// I: d_logits = the gradient through the weights, and that of the auxiliary loss. The choice has no
// gradient. The auxiliary loss of a sequence (Fedus et al. 2021, section 2.2) is
//   E * sum over e of f_e P_e,
// where f_e is the share of expert e in the sequence's pairs, a constant to the gradient, and P_e
// is the mean of its score, divided by the sum of all scores of the token. It is of one layer and
// one sequence, so that neither partitions nor microbatches change it.
struct RouteTokensBackward {
  ExpertRows rows;
  const float* logits = nullptr;          // [N,E] of the forward
  const std::int32_t* choices = nullptr;  // [N*k] of the forward
  const float* d_weights = nullptr;       // [N*k]
  float* d_logits = nullptr;              // [N,E]; may be logits
  std::int64_t context = 0;               // tokens of a sequence; divides N
  bool normalised = false;
  bool sigmoid = false;
  // Says what the auxiliary loss of a sequence is multiplied by in the loss of the global batch.
  double auxiliary_scale = 0;
};

// counts[e] = the rows of expert e.
struct CountExpertRows {
  ExpertRows rows;
  std::int32_t* counts = nullptr;  // [E], host memory
};

// W of a router's bias: sums[e] = the rows of expert e. They are whole numbers, so that additions
// of them are exact up to 2^24.
struct AddExpertRows {
  ExpertRows rows;
  float* sums = nullptr;  // [E]
  bool accumulate = false;
};

// bias[e] = previous[e] + rate * sign(mean - counts[e]): experts with fewer rows than the mean are
// chosen more often from now on, and the others less often (Wang et al. 2024, 2408.15664).
struct BalanceExperts {
  const float* previous = nullptr;
  const float* counts = nullptr;  // as AddExpertRows leaves them, of a whole step
  float* bias = nullptr;          // may be previous
  std::int64_t count = 0;         // of experts; may be 0
  double mean = 0;                // rows of an expert in a step
  float rate = 0;
};

// output[r] = (the weight of row r's pair) * silu(gate[r]) * up[r]. With the weight in here, the
// sum of a token's rows after the last product is all that is left to do.
struct ExpertSwigluForward {
  ExpertRows rows;
  const float* gate = nullptr;     // [N*k,F]
  const float* up = nullptr;       // [N*k,F]
  const float* weights = nullptr;  // [N*k], by pair
  Output output;                   // [N*k,F]
  std::int64_t columns = 0;        // F
};

struct ExpertSwigluBackward {
  ExpertRows rows;
  const float* gate = nullptr;      // of the forward
  const float* up = nullptr;        // of the forward
  const float* weights = nullptr;   // of the forward
  const float* d_output = nullptr;  // [N*k,F]
  float* d_gate = nullptr;          // may be gate
  float* d_up = nullptr;            // may be up
  float* d_weights = nullptr;       // [N*k], by pair
  std::int64_t columns = 0;         // F
};

// The matrix of one expert, in one of two forms.
struct ExpertMatrix {
  const float* b = nullptr;      // [k,n], stored [n,k] if b_transposed
  const Bf16* packed = nullptr;  // the same as PackBf16 leaves it: `a` is rounded to bf16
};

// The products of all experts' rows, each with the matrix of its expert. Either the factor has a
// row for each token, and each row of an expert reads its token's; or the result has one for each
// token, to which the rows of its experts are added in ascending order of experts:
//   c[r] = a[token of r] * b             (to_tokens false: a is [N,k], c is [N*k,n])
//   c[token of r] += a[r] * b            (to_tokens true:  a is [N*k,k], c is [N,n])
struct ExpertMatmul {
  ExpertRows rows;
  // One matrix for each expert, all in the same form. The list is in host memory and is read before
  // Run returns.
  std::span<const ExpertMatrix> matrices;
  Operand a;  // in f32 if it is by token
  float* c = nullptr;
  bool b_transposed = false;
  bool to_tokens = false;
  std::int64_t n = 0, k = 0;

  bool in_bf16() const { return !matrices.empty() && matrices.front().packed != nullptr; }
};

// by_row[r] = by_token[token of r]
struct PackTokens {
  ExpertRows rows;
  const float* by_token = nullptr;  // [N,C]
  float* by_row = nullptr;          // [N*k,C]
  std::int64_t columns = 0;         // C
};

// by_token[token of r] += by_row[r], for the rows of each token in ascending order of experts, as
// ExpertMatmul adds them.
struct AddRowsToTokens {
  ExpertRows rows;
  const std::int32_t* choices = nullptr;  // [N*k]: the expert of each pair
  const float* by_row = nullptr;          // [N*k,C]
  float* by_token = nullptr;              // [N,C]
  std::int64_t columns = 0;               // C
};

// by_row[r] = by_pair[the pair of r]
struct PackPairs {
  ExpertRows rows;
  const float* by_pair = nullptr;  // [N*k]
  float* by_row = nullptr;         // [N*k]
};

// by_pair[the pair of r] = by_row[r]
struct UnpackPairs {
  ExpertRows rows;
  const float* by_row = nullptr;  // [N*k]
  float* by_pair = nullptr;       // [N*k]
};

// The gradient of one expert's matrix.
struct ExpertGradient {
  float* c = nullptr;  // [m,n]
};

// c[m,n] (+)= the sum over the expert's rows of a[row]^T b[row], for each expert. One of the two
// has a row for each token (a_by_token) and is in f32; the other one has all rows. Where an expert
// has no row, the sum is 0.
struct ExpertMatmulTransposed {
  ExpertRows rows;
  std::span<const ExpertGradient> gradients;  // one for each expert; as ExpertMatmul::matrices
  Operand a;
  Operand b;
  bool a_by_token = false;
  bool in_bf16 = false;  // operands are rounded
  bool accumulate = false;
  std::int64_t m = 0, n = 0;
};

}  // namespace takt::backend
