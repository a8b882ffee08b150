// SPDX-License-Identifier: Apache-2.0
// The operations that a backend runs: plain structs of pointers, sizes and flags. All tensors are
// f32 unless said otherwise, row-major, and dense unless a stride is given. All pointers are memory
// of the backend that runs the op (backend.h). A tensor that is an `Operand` or an `Output` may be
// in bf16 instead; sums, softmax and functions are computed in f32 all the same.
//
// Letters: B sequences, T context, N = B * T rows (row b * T + t), C hidden, H heads, D head size,
// V vocabulary.
//
// These rules hold for every op:
// - Outputs are overwritten, unless the op has `accumulate` (then: overwrite if false, add if true)
//   or `addend`. An overwritten output may hold anything before, also NaN.
// - An output overlaps no input and no other output, except where a comment says "may be". Then
//   both have one type.
// - Operands and Outputs of one op are all in f32 or all in bf16, except where a comment says "in
//   either type".
// - A stride is the distance of rows in elements, and is at least their columns. 0 means dense.
// - The same op on the same data gives the same bits on every run and for every number of threads.
// - Sizes are at least 1 (FeedBackError, SumOfSquares, Fill, Copy, Add, BalanceExperts and tensors
//   of updates may have none).
// - Where sequences may hold several documents, an op has `starts`, [N]: for each row, the position
//   in its sequence at which its document begins. Within a sequence they never fall, and none is
//   above the row's own position. Null: every sequence is one document. Where an op's rows are not
//   all tokens of a sequence (AttentionShape::shares), positions count its rows: a start is the row
//   minus the tokens of its document before it. It may be negative, and it may fall once, where the
//   second piece begins.
// - Where a layer has input gradients (I) and weight gradients (W), they are different ops, and W
//   reads nothing that I writes beyond its declared outputs: a joint backward is I, then W, with
//   the same bits. The I of a norm may be its W as well (norm_ops.h), also with the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "worker/backend/expert_ops.h"
#include "worker/backend/fp8.h"
#include "worker/backend/muon_update.h"
#include "worker/backend/norm_ops.h"
#include "worker/backend/operand.h"

namespace takt::backend {

// A target with this value is not scored.
inline constexpr std::int32_t kIgnoredTarget = -100;

// c[m,n] = a * b + bias + addend, the last two optional.
//   y  = x W + bias  {.a = x, .b = W, .c = y, .bias = bias, .m = N, .n = out, .k = in}
//   dX = dY W^T      {.a = dY, .b = W, .c = dX, .b_transposed = true, .m = N, .n = in, .k = out}
//   dW (+)= X^T dY   {.a = X, .b = dY, .c = dW, .addend = first ? nullptr : dW,
//                     .a_transposed = true, .m = in, .n = out, .k = N}
struct Matmul {
  const float* a = nullptr;       // [m,k]; stored [k,m] if a_transposed
  const float* b = nullptr;       // [k,n]; stored [n,k] if b_transposed
  float* c = nullptr;             // [m,n]
  const float* bias = nullptr;    // [n]
  const float* addend = nullptr;  // [m,n]; may be c itself: accumulates
  bool a_transposed = false;
  bool b_transposed = false;
  std::int64_t m = 0, n = 0, k = 0;
};

// Products of matrices in bf16. Operands are rounded. Products of two numbers, which are exact in
// f32, are summed in f32, and bias and addend are f32. Operands and results come in either type.
// An operand with an Fp8 that rounds is rounded to values of FP8 instead, which are bf16, too. Its
// blocks lie along the sum.
//   y  = x W + bias   PackBf16{.b = W, ...} after each change of W; MatmulBf16{.a = x, .b = packed}
//   dX = dY W^T       the same with .transposed, into another buffer
//                     or both from one W in bf16 as it is stored (StoredB)
//   dW (+)= X^T dY    MatmulTransposedBf16{.a = X, .b = dY}

// packed = b [k,n] rounded, in the order of elements that MatmulBf16 of the same backend needs.
struct PackBf16 {
  const float* b = nullptr;  // [k,n]; stored [n,k] if transposed
  bool transposed = false;
  Fp8Scaling fp8 = Fp8Scaling::kNone;
  Bf16* packed = nullptr;  // layout::PackedElements(k, n), whatever the backend
  std::int64_t k = 0, n = 0;
};

// How the right factor of MatmulBf16 is stored. Rows that are not packed are whole vectors of 8
// elements, and after the last one follow rows of zeros up to a multiple of 8. GPUs read them where
// they are; CPUs pack them for each product.
enum class StoredB : std::uint8_t {
  kPacked,          // as PackBf16 leaves it
  kRows,            // [k,n]
  kTransposedRows,  // [n,k]
};

// The function that a product's result goes through. Both need c in bf16 and dense, and no addend.
enum class Activation : std::uint8_t {
  kNone,
  kGelu,      // inner = a * b + bias; c = gelu(inner), from the value before or after rounding
  kGeluGrad,  // c = (a * b, rounded or not) * gelu'(inner); no bias
};

// c[m,n] = a * b + bias + addend, the last two optional. Rows are padded to whole vectors: in bf16,
// `a` holds zeros from column k up to the next multiple of 8, and what c holds between n and its
// next multiple may change.
struct MatmulBf16 {
  Operand a;  // [m,k]
  Fp8 a_fp8;
  const Bf16* b = nullptr;  // [k,n]
  StoredB stored = StoredB::kPacked;
  Output c;                     // [m,n]
  const float* bias = nullptr;  // [n]
  // [n] bias rounded, or null. A backend may add it in its place.
  const Bf16* rounded_bias = nullptr;
  Operand addend;  // [m,n] or null; has c's type and layout; may be c itself
  std::int64_t a_stride = 0, c_stride = 0;
  Activation activation = Activation::kNone;
  Bf16* inner = nullptr;  // [m,n]: of kGelu written, of kGeluGrad read
  std::int64_t m = 0, n = 0, k = 0;
};

// c[m,n] (+)= a^T * b;  column_sums[n] (+)= the sums over the rows of b as it comes, which is the
// bias part of W. With sums_may_wait the backend may add these sums later, in one launch with those
// of a later op. They are complete after the next MatmulTransposedBf16 of this backend that has
// column_sums and may not wait. Until then no op but such products reads or writes them.
struct MatmulTransposedBf16 {
  Operand a;  // [k,m]
  Operand b;  // [k,n]
  Fp8 a_fp8, b_fp8;
  std::int64_t a_stride = 0, b_stride = 0;
  float* c = nullptr;            // [m,n]
  float* column_sums = nullptr;  // [n]; needs a dense b
  bool sums_may_wait = false;
  bool accumulate = false;
  std::int64_t m = 0, n = 0, k = 0;
};

// d_bias[C] (+)= sum over rows of d_output[N,C]. This is the bias part of W.
struct BiasGrad {
  Operand d_output;
  float* d_bias = nullptr;
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
};

// Rotates each pair (i, i + D/2) of every head by the angle of its position, in place and in
// Hugging Face's half-split order: (x_i, x_j) -> (x_i cos - x_j sin, x_j cos + x_i sin). `inverse`
// turns back, which is also the gradient (Su et al. 2021).
struct Rotary {
  Output x;                      // row r of head h at x + r * stride + h * head_size
  const float* table = nullptr;  // [T,D]: the D/2 cosines of a position, then its D/2 sines
  std::int64_t batch = 0, context = 0, heads = 0, head_size = 0;  // D even
  std::int64_t stride = 0;                                        // elements between rows
  bool inverse = false;
  const std::int32_t* starts = nullptr;  // positions count from there
};

// output = silu(gate) * up, silu(x) = x / (1 + e^-x)  (Shazeer 2020).
struct SwigluForward {
  Operand gate;   // [N,E], rows `stride` apart
  Operand up;     // as gate
  Output output;  // [N,E], dense; may be gate or up if they are; also in bf16 if these are in f32
  std::int64_t rows = 1, columns = 0;
  std::int64_t stride = 0;  // 0: dense
};

struct SwigluBackward {
  Operand gate;      // of the forward
  Operand up;        // of the forward
  Operand d_output;  // [N,E], dense
  Output d_gate;     // rows `stride` apart; may be gate
  Output d_up;       // as d_gate; may be up
  std::int64_t rows = 1, columns = 0, stride = 0;
};

// output = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
struct GeluForward {
  Operand input;
  Output output;  // may be input; also in bf16 if that is in f32
  std::int64_t count = 0;
};

// d_input = d_output * gelu'(input)
struct GeluBackward {
  Operand input;  // of the forward
  Operand d_output;
  Output d_input;  // may be d_output or input
  std::int64_t count = 0;
};

// The shape of causal attention. Row r of head h starts at pointer + r * stride + h * head_size;
// query head h reads key/value head h / (heads / kv_heads). For q, k, v side by side in one [N,3C]
// tensor: q = qkv, k = qkv + C, v = qkv + 2C, all strides 3C.
struct AttentionShape {
  std::int64_t batch = 0, context = 0;                  // B, T
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;  // heads divisible by kv_heads
  // Elements between rows: of q; of k and v; of the output.
  std::int64_t q_stride = 0, kv_stride = 0, out_stride = 0;
  // Query t sees the keys t - window + 1 .. t. 0: it sees all keys up to t.
  std::int64_t window = 0;
  // With more than one share, each sequence is cut into 2 * shares equal pieces, and the queries
  // are those of piece `share`, then those of piece 2 * shares - 1 - share. Tensors of queries have
  // T / shares rows a sequence, those of keys and values have T. Only the CPU takes several shares.
  std::int64_t shares = 1, share = 0;
};

// output = softmax(q k^T / sqrt(D)) v over the keys that a query sees, heads side by side. Where
// tensors are in bf16, the numbers multiplied inside (probabilities, gradients of scores) may be in
// bf16 too. It needs no memory of size T x T: it goes through blocks of keys with a running maximum
// and sum (FlashAttention, Dao et al. 2022, algorithm 1).
struct AttentionForward {
  AttentionShape shape;
  Operand q;
  Operand k;
  Operand v;
  Output output;
  float* logsumexp = nullptr;  // [B,H,T]: of the scaled scores of each query, for the backward
  const std::int32_t* starts = nullptr;  // a query sees no key before its document's start
};

// I of attention (which has no W). It recomputes probabilities block by block from `logsumexp`.
struct AttentionBackward {
  AttentionShape shape;
  Operand q;
  Operand k;
  Operand v;
  Operand output;                        // of the forward
  const float* logsumexp = nullptr;      // of the forward
  Operand d_output;                      // stride out_stride
  Output d_q;                            // stride q_stride; no overlap with q, k, v
  Output d_k;                            // stride kv_stride
  Output d_v;                            // stride kv_stride
  const std::int32_t* starts = nullptr;  // of the forward
};

// Causal attention of new tokens of one sequence, where those before them are in a cache. It puts k
// and v into the cache, after those of the `past` tokens, and then computes what AttentionForward
// gives for the same queries. All of it is in f32. It changes only the rows of the new tokens in
// the cache.
struct CachedAttention {
  const float* q = nullptr;  // [N, heads * D], rows q_stride apart
  const float* k = nullptr;  // [N, kv_heads * D], rows kv_stride apart
  const float* v = nullptr;  // as k
  float* keys = nullptr;     // [kv_heads, capacity, D]
  float* values = nullptr;   // as keys
  float* output = nullptr;   // [N, heads * D], rows out_stride apart
  std::int64_t rows = 0;     // N
  std::int64_t past = 0;     // tokens in the cache; past + rows is at most capacity
  std::int64_t capacity = 0;
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;  // heads divisible by kv_heads
  std::int64_t q_stride = 0, kv_stride = 0, out_stride = 0;
  std::int64_t window = 0;  // as AttentionShape::window
};

// output[b*T+t] = token_table[tokens[b*T+t]] + position_table[t - starts[b*T+t]].  The caller has
// checked 0 <= token < V.
struct EmbeddingForward {
  const std::int32_t* tokens = nullptr;   // [N]; null: each row has a row of token_table, in order
  const float* token_table = nullptr;     // [V,C]
  const float* position_table = nullptr;  // [>= T,C]; null: none is added
  Output output;                          // [N,C]
  std::int64_t batch = 0, context = 0, columns = 0;
  const std::int32_t* starts = nullptr;
  // If num_words is not 0, token_table has only the words [first_word, first_word + num_words). The
  // rows of other tokens become -0.0, which changes no number to which it is added.
  std::int64_t first_word = 0, num_words = 0;
};

// W of the embedding: rows of equal token (or position) are summed in row order. Without
// `accumulate` the whole tables are overwritten, and rows that no token or position used become
// zero. d_token_table may have only the words [first_word, first_word + vocab). Rows of other
// tokens are then left out of it.
struct EmbeddingBackward {
  const std::int32_t* tokens = nullptr;  // [N]; null if d_token_table is
  Operand d_output;                      // [N,C]
  float* d_token_table = nullptr;        // [V,C] or null
  float* d_position_table = nullptr;     // [positions,C] or null
  std::int64_t batch = 0, context = 0, columns = 0, vocab = 0, positions = 0;
  bool accumulate = false;
  const std::int32_t* starts = nullptr;  // of the forward
  std::int64_t first_word = 0;
};

// Softmax and cross-entropy over rows of logits that come in blocks of columns, in three ops:
//   SoftmaxBlock          of each block
//   CrossEntropy          once, from what the blocks have left: the loss, the softmax of whole rows
//   CrossEntropyGradient  of each block
// A target is kIgnoredTarget, where the row is not scored, or a column of the whole row.

// Says how much the target's distribution gives to each column of the whole row. Label smoothing by
// e over V columns (Szegedy et al. 2016, section 7) has target = 1 - e and each = e / V.
struct TargetShares {
  float target = 1;  // what the target has beside `each`
  float each = 0;    // every column, also the target
  bool operator==(const TargetShares&) const = default;
};

// What a block adds to the softmax of a row; all zero where the row is not scored.
struct SoftmaxPart {
  double sum = 0;  // of e^(logit - max)
  float max = 0;   // the largest logit
  // The sum of the columns' shares * logits. Without smoothing it is the target's logit, if that is
  // in the block, and 0 otherwise.
  float target_logit = 0;
};

// Has what the gradients of a row need. Its softmax is e^(logit - max) * factor / scale, times 1 +
// 2 z_loss Z; all zero where it is not scored.
struct SoftmaxRow {
  double factor = 0;  // scale * (1 + 2 z_loss Z) / the sum of e^(logit - max)
  float max = 0;
  float scale = 0;  // CrossEntropy::scale
};

// parts[r] = what these columns add to row r. The sum is in the order of columns that the backend
// says, and does not depend on other blocks.
struct SoftmaxBlock {
  Operand logits;                         // [N,columns], rows `stride` apart
  const std::int32_t* targets = nullptr;  // [N]
  SoftmaxPart* parts = nullptr;           // [N]
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::int64_t first = 0;  // the number of the first of the columns
  TargetShares shares;
};

// loss_sum: the sum over scored rows of the cross-entropy with the target's distribution, and of
// z_loss * Z^2 with Z = log(sum of e^logit) (PaLM, Chowdhery et al. 2022, section 5). Sums over
// blocks are in double in ascending order. Row losses are summed in double, in an order that
// depends on their number alone, and not divided.
struct CrossEntropy {
  const SoftmaxPart* parts = nullptr;     // [blocks,N], blocks `parts_stride` apart
  const std::int32_t* targets = nullptr;  // [N]
  SoftmaxRow* softmax = nullptr;          // [N]
  double* loss_sum = nullptr;             // one number, host memory; null: nobody asks
  std::int64_t rows = 0, blocks = 0;
  // For the gradient of the mean over the global batch: 1 / (its number of scored tokens).
  float scale = 1;
  double z_loss = 0;
  std::int64_t parts_stride = 0;  // 0: rows
};

// logits: overwritten by scale * ((1 + 2 z_loss Z) softmax - shares), with zeros in rows that are
// not scored and between `columns` and `stride`.
struct CrossEntropyGradient {
  Output logits;                          // [N,columns] as of SoftmaxBlock
  const std::int32_t* targets = nullptr;  // [N]
  const SoftmaxPart* parts = nullptr;     // [N]: of this block
  const SoftmaxRow* softmax = nullptr;    // [N]
  std::int64_t rows = 0, columns = 0, stride = 0, first = 0;
  TargetShares shares;  // the same as of SoftmaxBlock
};

// A tensor that an optimizer updates. It has the moments that its update names, and no others.
//
// An update that `foresees` leaves the moments as they are: `parameter`, which is not `previous`,
// gets the bits that the same update would make otherwise.
struct UpdatedTensor {
  float* parameter = nullptr;
  const float* previous = nullptr;  // the parameter as it was, left alone; null: in place
  const float* gradient = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  Bf16* rounded = nullptr;         // the parameter rounded, too; null: not wanted
  std::int64_t count = 0;          // may be 0
  double learning_rate_scale = 1;  // lr of the tensor = this * the update's learning_rate
  double weight_decay = 0;
};

// One AdamW step of many tensors with decoupled decay, for scaled gradients g = gradient_scale *
// gradient:
//   m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  p = p * (1 - lr * weight_decay)
//   p = p - lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon)
struct AdamwUpdate {
  std::span<const UpdatedTensor> tensors;  // the list: host memory, read before Run returns
  std::int64_t step = 1;                   // 1-based
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double gradient_scale = 1;  // of clipping
  bool foresees = false;
};

// One Lion step (Chen et al. 2023, algorithm 2) of many tensors, for scaled gradients g:
//   p = p - lr * (sign(beta1 m + (1-beta1) g) + weight_decay p);  m = beta2 m + (1-beta2) g
struct LionUpdate {
  std::span<const UpdatedTensor> tensors;
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.99;
  double gradient_scale = 1;
  bool foresees = false;
};

// One step of gradient descent of many tensors, for d = scaled gradient + weight_decay p, as
// PyTorch's SGD without dampening:
//   m = momentum m + d;  p = p - lr * (nesterov ? d + momentum m : m)
// Without momentum there is no m, and p = p - lr * d.
struct SgdUpdate {
  std::span<const UpdatedTensor> tensors;
  double learning_rate = 0, momentum = 0;
  bool nesterov = false;
  double gradient_scale = 1;
  bool foresees = false;
};

// Corrects weights that gradients of the step before have updated, by error feedback (Zmushko et
// al. 2026, arXiv:2606.30634), whatever the optimizer. An update stands in for one that the step's
// own gradients would have made. The next update shows what that one would have been, so their
// difference, the error, is added then:
//   u = parameter - previous;  parameter += coefficient (u - last_update);  last_update = u
struct FeedBackError {
  float* parameter = nullptr;       // as the optimizer has updated it
  const float* previous = nullptr;  // the parameter before that update
  float* last_update = nullptr;
  std::int64_t count = 0;  // may be 0
  float coefficient = 0;
};

// SumOfSquares adds by blocks of so many elements.
inline constexpr std::int64_t kSquaresPerBlock = 4096;

// *result = the sum of squares in double over blocks; block sums are added in order. Or, where
// `block_sums` is set, only these: one for each block. Both are host memory.
struct SumOfSquares {
  const float* input = nullptr;
  double* result = nullptr;
  std::int64_t count = 0;
  double* block_sums = nullptr;
};

struct Fill {
  float* output = nullptr;
  float value = 0;
  std::int64_t count = 0;
};

struct Copy {
  Operand input;
  Output output;  // rounded if only it is in bf16
  std::int64_t count = 0;
};

// output = a + b
struct Add {
  const float* a = nullptr;
  const float* b = nullptr;
  float* output = nullptr;  // may be a or b
  std::int64_t count = 0;
};

using Op = std::variant<
    Matmul, PackBf16, MatmulBf16, MatmulTransposedBf16, BiasGrad, LayerNormForward,
    LayerNormBackwardInput, LayerNormBackwardWeights, RmsNormForward, RmsNormBackwardInput,
    RmsNormBackwardWeights, Rotary, SwigluForward, SwigluBackward, GeluForward, GeluBackward,
    AttentionForward, AttentionBackward, CachedAttention, EmbeddingForward, EmbeddingBackward,
    SoftmaxBlock, CrossEntropy, CrossEntropyGradient, AdamwUpdate, LionUpdate, SgdUpdate,
    MuonUpdate, FeedBackError, SumOfSquares, Fill, Copy, Add, RouteTokens, RouteTokensBackward,
    CountExpertRows, AddExpertRows, BalanceExperts, ExpertSwigluForward, ExpertSwigluBackward,
    ExpertMatmul, ExpertMatmulTransposed, PackTokens, AddRowsToTokens, PackPairs, UnpackPairs>;

// The ops that update many parameters element by element.
template <class O>
concept UpdateOp = requires(const O& op) {
  op.tensors;
};

// The ops that multiply matrices.
template <class O>
concept ProductOp = requires(const O& op) {
  op.m, op.n, op.k;
};

}  // namespace takt::backend
