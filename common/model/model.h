// SPDX-License-Identifier: Apache-2.0
// Describes a model as a list of layers. The planner, the engine, checkpoints and docs all read
// this description. Letters: B microbatch size, T context, C hidden, V vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/model/expert_share.h"
#include "common/model/parts.h"
#include "common/model/recompute.h"
#include "common/model/split.h"
#include "common/model/stash.h"
#include "common/model/tensor_share.h"

namespace takt::model {

enum class Precision : std::uint8_t { kF32 = 1, kBf16 = 2 };

// How products of blocks round their operands to FP8 (docs/numerics.md): not at all, with one scale
// for a whole operand, or with one for each block of it.
enum class Fp8Recipe : std::uint8_t { kNone = 0, kTensor = 1, kBlock = 2 };

// Says which values are rounded to bf16 or FP8, if any. Weights and their gradients, sums inside an
// operation, statistics and the loss are always f32.
struct Precisions {
  Precision products = Precision::kF32;  // operands of products of matrices
  // The results of a layer's products, attention and activation functions, and their gradients.
  // They are in bf16 only if products are.
  Precision activations = Precision::kF32;
  Fp8Recipe fp8 = Fp8Recipe::kNone;  // of blocks; another one needs products in bf16
  // What layers pass on to each other, and its gradients.
  Precision residual = Precision::kF32;

  // Returns the precision of the residual stream inside a layer, unless the layer is one that ranks
  // split or has experts: these compute with it in f32.
  Precision stream() const { return residual == Precision::kBf16 ? activations : Precision::kF32; }

  // Returns whether all that products read of a gradient in f32 is that gradient in bf16. Then it
  // is rounded once, where it is made.
  bool RoundsGradientsOnce() const {
    return activations == Precision::kBf16 && fp8 == Fp8Recipe::kNone;
  }
  // Returns whether products read weights that are rounded to bf16 and otherwise stored as they are
  // (Parameter::kept_rounded). Elsewhere a backend packs them for each kind of product.
  bool ReadsWeightsAsStored() const { return RoundsGradientsOnce(); }
};

enum class Family : std::uint8_t {
  kGpt2 = 1,
  kLlama = 2,
  kQwen2 = 3,
  kEmulated = 4,
  kQwen3 = 5,
  kMistral = 6,
  kMixtral = 7,
  kQwen3Moe = 8
};

// Returns whether the family rotates queries and keys by the angles of their positions (RoPE).
constexpr bool HasRotaryPositions(Family family) {
  return family != Family::kGpt2 && family != Family::kEmulated;
}

// Says how Llama 3.1 stretches rotary positions beyond those that it was first trained on.
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;
  int original_positions = 0;
};

// Returns whether the MLPs of the family are mixtures of experts.
constexpr bool HasExperts(Family family) {
  return family == Family::kMixtral || family == Family::kQwen3Moe;
}

// Returns whether the family normalises each query and key.
constexpr bool NormalisesHeads(Family family) {
  return family == Family::kQwen3 || family == Family::kQwen3Moe;
}

// Says what the router makes of its logits.
enum class RouterScores : std::uint8_t {
  kSoftmax = 1,
  // The experts are chosen by score and a bias, which balances them (Parameter::balances).
  kSigmoid = 2
};

// A mixture of experts in place of an MLP. Each token goes through the `chosen` experts that its
// router scores highest, and no token is dropped.
struct Mixture {
  int experts = 0;
  int chosen = 0;
  int inner = 0;  // width of an expert
  // Says whether the weights of a token's experts are divided by their sum.
  bool normalised = true;
  // The weight of the auxiliary loss that balances the experts, of each layer and sequence. 0: the
  // loss does not have it.
  double auxiliary_loss = 0;
  // qwen3_moe: the blocks that have an MLP of ModelConfig::inner instead, ascending.
  std::vector<int> dense_blocks;
  RouterScores scores = RouterScores::kSoftmax;
  double bias_rate = 1e-3;  // kSigmoid: by how much a step changes the bias of an expert
};

// The shape of a model, filled from a job spec or a config.json.
struct ModelConfig {
  Family family = Family::kGpt2;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;   // = heads for gpt2
  int head_size = 0;  // 0: hidden / heads, which is all that gpt2 can have
  int inner = 0;      // width of the MLP; of mixtral: of an expert
  int context = 0;    // T of training
  int positions = 0;  // rows of the position table; >= context
  int vocab = 0;
  bool tied_head = true;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  double dropout = 0;  // the largest that a config.json names; training has none
  // Rotary positions of the families that have them.
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  // Sliding-window attention: the most keys that a token of mistral sees, its own and those of the
  // tokens right before it. Without it a token sees all keys up to its own.
  std::optional<int> attention_window;
  std::optional<int> end_token;    // the first eos_token_id that a config.json names
  std::optional<Mixture> mixture;  // of the families that have experts
  // Costs of a layer of the emulated family, for each microbatch.
  double forward_seconds = 0, input_grad_seconds = 0, weight_grad_seconds = 0;
  std::int64_t activation_bytes = 0;
  std::int64_t parameter_bytes = 0;  // f32 weights of a layer, which are summed and updated
  // The bytes of a tensor that a tensor group gathers before F and I of a layer, and scatters
  // after.
  std::int64_t collective_bytes = 0;

  // Returns whether the MLP of this block is a mixture.
  bool HasExpertsIn(int block) const {
    return mixture.has_value() && !std::ranges::binary_search(mixture->dense_blocks, block);
  }
  // Returns attention_window, or 0 if it hides no key from any token of a sequence of `context`.
  int EffectiveWindow() const {
    return attention_window.has_value() && *attention_window < context ? *attention_window : 0;
  }
};

enum class LayerKind : std::uint8_t {
  kEmbedding = 1,
  kGpt2Block = 2,
  kGpt2Head = 3,
  kEmulated = 4,
  kLlamaBlock = 5,  // of qwen2 and mistral too
  kLlamaHead = 6,   // of all families with rotary positions
  kQwen3Block = 7,  // a llama block that normalises each query and key
  // These are the same two with a mixture of experts in place of the MLP.
  kMixtralBlock = 8,
  kQwen3MoeBlock = 9
};

// Returns whether layers of the kind have a mixture of experts.
constexpr bool HasExperts(LayerKind kind) {
  return kind == LayerKind::kMixtralBlock || kind == LayerKind::kQwen3MoeBlock;
}

enum class Init : std::uint8_t { kZeros = 1, kOnes = 2, kNormal = 3 };

// Products on GPUs read bf16 in vectors of this many elements (16 bytes).
inline constexpr std::int64_t kBf16PerVector = 8;
constexpr bool IsWholeVectors(std::int64_t elements) { return elements % kBf16PerVector == 0; }

struct Parameter {
  std::string name;  // Hugging Face's tensor name; the key of checkpoints and of initial weights
  std::vector<std::int64_t> shape;  // of what the rank has of it (Split)
  Init init = Init::kZeros;
  double stddev = 0;      // of kNormal
  bool by_word = false;   // a row for each word of the vocabulary: see vocabulary.h
  int moments = 2;        // f32 numbers that the job's optimizer keeps of each element
  bool fed_back = false;  // its last update is kept, too, for the next one to correct
  bool by_muon = false;   // Muon updates it, for which it must be whole on a rank
  // Products with it are in f32, whatever the precision of the model's products.
  bool multiplies_in_f32 = false;
  // A bias that products with results in bf16 add, or a matrix that products in bf16 read in either
  // order. It is kept in bf16 as well.
  bool kept_rounded = false;
  // It is kept rounded right before the next parameter of its layer, so that products read both as
  // one matrix.
  bool adjoins_next = false;
  // A bias that a router adds to its scores to balance experts. What stands in place of its
  // gradient counts the rows of each expert, and the optimizer uses only the sign of their
  // difference from the mean. It takes no part in the norm, in clipping and in decay.
  bool balances = false;
  int expert = -1;    // of its block, to which it belongs alone; -1: to none
  bool away = false;  // another rank has it, where ranks share experts
  Split split;        // a table by words is never split so: a rank has a run of its rows
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
  // Counts the floats of its gradients.
  std::int64_t gradient_elements() const { return split.gradients * elements(); }
  // Counts the numbers of an element that checkpoints and copies keep: the weight, its moments and,
  // if it is fed back, its last update.
  int state_parts() const { return 1 + moments + (fed_back ? 1 : 0); }
  std::int64_t state_elements() const { return state_parts() * elements(); }
  bool decayed() const { return shape.size() >= 2; }
};

// The costs of one microbatch of B sequences.
struct LayerCost {
  double forward_flops = 0, input_grad_flops = 0, weight_grad_flops = 0;
  // The emulated family has seconds instead of FLOPs.
  double forward_seconds = 0, input_grad_seconds = 0, weight_grad_seconds = 0;
  double recompute_flops = 0;     // what I adds under Recompute::kFull
  std::int64_t output_bytes = 0;  // the activation passed on

  // Returns the work of F, I and W: FLOPs, or seconds in the emulated family.
  double Work() const {
    return forward_flops + input_grad_flops + weight_grad_flops + forward_seconds +
           input_grad_seconds + weight_grad_seconds;
  }
  // Returns the FLOPs of I with what is computed again before it.
  double InputGradFlops(Recompute recompute) const {
    return input_grad_flops + (recompute == Recompute::kFull ? recompute_flops : 0);
  }
};

struct Layer {
  LayerKind kind = LayerKind::kEmbedding;
  int block = -1;  // number of the transformer block, -1 for embedding and head
  std::vector<Parameter> parameters;
  // The names of parameters of another layer that this one uses too. The head of a tied model uses
  // the embedding's weight.
  std::vector<std::string> tied_parameters;
  // The tensors that the layer's passes leave one another of a microbatch, and those that I needs
  // while it runs. They are in the order of the lists of the layer's kind (Gpt2BlockStash,
  // Gpt2BlockScratch).
  std::vector<StashTensor> stash;
  std::vector<ScratchTensor> scratch;
  LayerCost cost;
  LayerParts parts;  // where ranks meet in its passes

  // Returns whether the layer multiplies by the parameter, which is its own or a tied one, in the
  // precision of the model's products.
  bool MultipliesBy(const Parameter& parameter) const {
    return kind != LayerKind::kEmbedding && parameter.shape.size() == 2 &&
           !parameter.multiplies_in_f32;
  }
};

struct Model {
  ModelConfig config;
  int microbatch = 1;  // the B that the costs are for
  Precisions precisions;
  // No token sees those of other documents in its sequence, and positions count within a document.
  bool separate_documents = false;
  // The rows of which products of the head take so many at a time (head_slices.h); 0: all at once.
  std::int64_t head_slice = 0;
  TensorShare tensor;         // the rank that the layers are for
  int context_ranks = 1;      // that share the tokens of each sequence (context_layers.h)
  ExpertShare experts;        // of the rank that the layers are for
  std::vector<Layer> layers;  // embedding, blocks, head (emulated: blocks only)

  // Returns how many tokens of each sequence a rank has, and of a microbatch.
  std::int64_t context_here() const { return config.context / context_ranks; }
  std::int64_t rows() const { return std::int64_t{microbatch} * context_here(); }
  // Returns the rows of each of the head's slices but the last.
  std::int64_t head_slice_rows() const {
    return head_slice == 0 ? rows() : std::min(head_slice, rows());
  }
  // Returns the parameters in the model's own order, a tied one once. The norm exchange has them in
  // this order.
  std::vector<const Parameter*> AllParameters() const;
  // Returns the number of elements of the parameters of all ranks that split the layers.
  std::int64_t num_parameters() const;
  // Returns the parameter of that name, or null if there is none.
  const Parameter* Find(std::string_view name) const;
  // Returns the FLOPs of F, I and W of all layers for one microbatch, with causal attention, on all
  // ranks that split the layers or share the sequences. What is computed twice counts once. It is 0
  // for the emulated family.
  double FlopsPerMicrobatch() const;
};

// Returns every rule that `config` breaks, as fields of a job spec ("model.heads"). If there is
// none, BuildModel takes it.
std::vector<FieldError> CheckConfig(const ModelConfig& config);

// Builds the model, or the part of it that one rank has where ranks split layers or share experts.
// With several context ranks, tensors and costs are those of the tokens of any one of them.
// Errors: kInvalidArgument with what CheckConfig, CheckShare (split_layers.h) or CheckContext
// (context_layers.h) found, or with an `experts.size` that does not divide the model's experts.
// Precondition: microbatch >= 1.
absl::StatusOr<Model> BuildModel(const ModelConfig& config, int microbatch,
                                 const Precisions& precisions = {}, const TensorShare& tensor = {},
                                 int context_ranks = 1, const ExpertShare& experts = {});

// Returns the elements from one row of logits of so many words to the next. This is the words,
// filled up to 64 in bf16, so that rows begin where products on GPUs read them fastest.
std::int64_t LogitsStride(std::int64_t words, Precision activations);

// Returns the entries of a parameter in the norm exchange: one for each block of words, or for each
// piece of the whole.
int NumNormEntries(const Parameter& parameter);

}  // namespace takt::model
