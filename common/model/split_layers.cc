// SPDX-License-Identifier: Apache-2.0
#include "common/model/split_layers.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/field_rules.h"
#include "common/model/layer_parts.h"
#include "common/model/parts.h"
#include "common/model/split_stash.h"
#include "common/model/tree_sum.h"
#include "common/model/vocabulary.h"

namespace takt::model {
namespace {

// Says how the ranks share a parameter. A product's columns are its outputs, and its rows are what
// it sums over; so which dimension of a matrix is cut depends on how the matrix is stored.
enum class How : std::uint8_t { kDimension0, kDimension1, kCopied, kSummed };

struct Rule {
  std::string_view suffix;  // of the parameter's name
  How how;
  int sections = 1;
  bool by_key_head = false;  // cut into key/value heads, of which there may be fewer than leaves
};

constexpr Rule kRules[] = {
    {.suffix = "attn.c_attn.weight", .how = How::kDimension1, .sections = 3},
    {.suffix = "attn.c_attn.bias", .how = How::kDimension0, .sections = 3},
    {.suffix = "mlp.c_fc.weight", .how = How::kDimension1},
    {.suffix = "mlp.c_fc.bias", .how = How::kDimension0},
    {.suffix = ".c_proj.weight", .how = How::kDimension0},
    {.suffix = ".c_proj.bias", .how = How::kCopied},
    {.suffix = ".wpe.weight", .how = How::kCopied},
    {.suffix = ".ln_1.weight", .how = How::kSummed},
    {.suffix = ".ln_1.bias", .how = How::kSummed},
    {.suffix = ".ln_2.weight", .how = How::kSummed},
    {.suffix = ".ln_2.bias", .how = How::kSummed},
    {.suffix = ".ln_f.weight", .how = How::kSummed},
    {.suffix = ".ln_f.bias", .how = How::kSummed},
    {.suffix = ".q_proj.weight", .how = How::kDimension0},
    {.suffix = ".q_proj.bias", .how = How::kDimension0},
    {.suffix = ".k_proj.weight", .how = How::kDimension0, .by_key_head = true},
    {.suffix = ".k_proj.bias", .how = How::kDimension0, .by_key_head = true},
    {.suffix = ".v_proj.weight", .how = How::kDimension0, .by_key_head = true},
    {.suffix = ".v_proj.bias", .how = How::kDimension0, .by_key_head = true},
    {.suffix = ".o_proj.weight", .how = How::kDimension1},
    {.suffix = ".gate_proj.weight", .how = How::kDimension0},
    {.suffix = ".up_proj.weight", .how = How::kDimension0},
    {.suffix = ".down_proj.weight", .how = How::kDimension1},
    {.suffix = "norm.weight", .how = How::kSummed},
};

// The sizes of a layer on one rank.
struct Sizes {
  std::int64_t rows, rows_here;  // of tokens
  std::int64_t hidden;
  std::int64_t query, key, inner;  // channels of a leaf
  std::int64_t heads, kv_heads;    // of a leaf
  int leaves_here;

  explicit Sizes(const Model& model)
      : rows(Tokens(model.config, model.microbatch)),
        rows_here(rows / model.tensor.size),
        hidden(model.config.hidden),
        inner(model.config.inner / model.tensor.leaves),
        heads(model.config.heads / model.tensor.leaves),
        kv_heads(std::max(1, model.config.kv_heads / model.tensor.leaves)),
        leaves_here(model.tensor.leaves_here()) {
    query = heads * model.config.head_size;
    key = kv_heads * model.config.head_size;
  }
};

void SplitParameter(Parameter& parameter, const Model& model) {
  parameter.adjoins_next = false;  // each piece is a product of its own
  if (parameter.by_word) return;
  const TensorShare& share = model.tensor;
  const auto* const rule = std::ranges::find_if(
      kRules, [&](const Rule& each) { return parameter.name.ends_with(each.suffix); });
  TAKT_CHECK(rule != std::end(kRules));
  switch (rule->how) {
    case How::kCopied:
      parameter.split = CopyOf(share);
      return;
    case How::kSummed:
      parameter.split = SplitOf(/*pieces=*/1, share);
      return;
    case How::kDimension0:
    case How::kDimension1:
      break;
  }
  const int pieces =
      rule->by_key_head ? std::min(model.config.kv_heads, share.leaves) : share.leaves;
  const std::size_t dimension = rule->how == How::kDimension0 ? 0 : 1;
  parameter.split = SplitOf(pieces, share);
  parameter.split.dimension = static_cast<int>(dimension);
  parameter.split.sections = rule->sections;
  parameter.shape[dimension] /= pieces;
  parameter.shape[0] *= parameter.split.count;
}

// num_stats: as of AddNorm. What a norm leaves is kept where products are: its output has passed
// between ranks.
void AddSplitNorm(std::vector<StashTensor>& stash, const NormNames& names, const Sizes& sizes,
                  std::int64_t num_stats, Precision output) {
  stash.push_back(Product(names.output, sizes.rows, sizes.hidden, output));
  stash.push_back(Product(names.stats, sizes.rows_here, num_stats));
  stash.push_back(
      {names.part, Origin::kInputGrad, kFloatBytes * sizes.hidden * num_stats * sizes.leaves_here});
}

StashTensor Gathered(std::string_view name, const Sizes& sizes) {
  return {name, Origin::kInputGrad, kFloatBytes * sizes.rows * sizes.hidden};
}

// Adds the tensors of SplitGpt2Leaf.
void AddGpt2Leaf(std::vector<StashTensor>& stash, const Sizes& sizes,
                 const Precisions& precisions) {
  const Precision activations = precisions.activations;
  stash.push_back(Product("qkv", sizes.rows, 3 * sizes.query, activations));
  stash.push_back(Product("attention", sizes.rows, sizes.query, activations));
  stash.push_back(Product("logsumexp", sizes.rows, sizes.heads));
  stash.push_back(Product("inner", sizes.rows, sizes.inner, activations));
  stash.push_back(Rowwise("activated", sizes.rows, sizes.inner, precisions.products));
}

// Adds the tensors of SplitLlamaLeaf. head_size: 0 if heads are not normalised.
void AddLlamaLeaf(std::vector<StashTensor>& stash, const Sizes& sizes, const Precisions& precisions,
                  std::int64_t head_size) {
  const Precision activations = precisions.activations;
  const auto query_or_key = head_size > 0 ? Rowwise : Product;
  stash.push_back(query_or_key("q", sizes.rows, sizes.query, activations));
  stash.push_back(query_or_key("k", sizes.rows, sizes.key, activations));
  stash.push_back(Product("v", sizes.rows, sizes.key, activations));
  stash.push_back(Product("attention", sizes.rows, sizes.query, activations));
  stash.push_back(Product("logsumexp", sizes.rows, sizes.heads));
  stash.push_back(Product("gate", sizes.rows, sizes.inner, activations));
  stash.push_back(Product("up", sizes.rows, sizes.inner, activations));
  stash.push_back(Rowwise("product", sizes.rows, sizes.inner, precisions.products));
  if (head_size == 0) return;
  stash.push_back(Product("raw_q", sizes.rows, sizes.query));
  stash.push_back(Rowwise("q_norm_stats", sizes.rows, sizes.heads));
  stash.push_back({"q_norm_part", Origin::kInputGrad, kFloatBytes * head_size});
  stash.push_back(Product("raw_k", sizes.rows, sizes.key));
  stash.push_back(Rowwise("k_norm_stats", sizes.rows, sizes.kv_heads));
  stash.push_back({"k_norm_part", Origin::kInputGrad, kFloatBytes * head_size});
}

void SplitBlock(Layer& layer, const Model& model) {
  using enum ScratchTensor::Start;
  const Sizes sizes(model);
  const bool gpt2 = layer.kind == LayerKind::kGpt2Block;
  const std::int64_t num_stats = gpt2 ? 2 : 1;
  const std::int64_t head_size = layer.kind == LayerKind::kQwen3Block ? model.config.head_size : 0;
  const Precision products = model.precisions.products;
  std::vector<StashTensor> stash;
  AddSplitNorm(stash, kNorm1, sizes, num_stats, products);
  stash.push_back(Product("middle", sizes.rows_here, sizes.hidden));
  stash.push_back(Gathered("middle_grad", sizes));
  AddSplitNorm(stash, kNorm2, sizes, num_stats, products);
  stash.push_back(Gathered("output_grad", sizes));
  for (int leaf = 0; leaf < sizes.leaves_here; ++leaf) {
    if (gpt2) {
      AddGpt2Leaf(stash, sizes, model.precisions);
    } else {
      AddLlamaLeaf(stash, sizes, model.precisions, head_size);
    }
  }
  layer.stash = std::move(stash);
  const Precision activations = model.precisions.activations;
  const std::int64_t query_bytes = Bytes(activations, sizes.rows * sizes.query);
  const std::int64_t key_bytes = gpt2 ? 0 : Bytes(activations, sizes.rows * sizes.key);
  layer.scratch = {{"d_inner", Bytes(activations, sizes.rows * sizes.inner)},
                   {"d_q", gpt2 ? 3 * query_bytes : query_bytes, kWithLine},
                   {"d_k", key_bytes, kBehindTensor},
                   {"d_v", key_bytes, kBehindTensor},
                   {"d_attention", query_bytes}};
  for (int i = 0; i < TreeSum::MostBuffers(sizes.leaves_here); ++i)
    layer.scratch.push_back({"sum", kFloatBytes * sizes.rows * sizes.hidden});
}

void SplitEmbedding(Layer& layer, const Model& model) {
  const Sizes sizes(model);
  layer.stash = {Gathered("output_grad", sizes)};
  layer.scratch = {{"rows", model.tensor.size == 1 ? 0 : kFloatBytes * sizes.rows * sizes.hidden}};
}

void SplitHead(Layer& layer, const Model& model) {
  const Sizes sizes(model);
  const std::vector<StashTensor>& whole = layer.stash;
  const std::int64_t num_stats =
      whole[HeadStash::kNormPart].bytes / (kFloatBytes * model.config.hidden);
  const auto [first, last] = BlocksOf(model.tensor, model.config.vocab);
  std::vector<StashTensor> stash;
  AddSplitNorm(stash, {"norm", "norm_stats", "norm_part"}, sizes, num_stats, Precision::kF32);
  stash.push_back(whole[HeadStash::kSoftmaxParts]);
  stash.push_back(whole[HeadStash::kSoftmax]);
  const auto logits = whole.begin() + HeadStash::kLogits;
  stash.insert(stash.end(), logits + first, logits + last);
  layer.stash = std::move(stash);

  std::int64_t received = 0;
  for (int rank = 0; rank < model.tensor.size; ++rank) {
    if (rank == model.tensor.index) continue;
    const auto [begin, end] = BlocksOf(ShareOf(model.tensor, rank), model.config.vocab);
    received += std::ssize(PartialSumsOf(begin, end).parts);
  }
  layer.scratch = {{"received", kFloatBytes * received * sizes.rows_here * sizes.hidden}};
  for (int i = 0; i < PartialSumsOf(first, last).most; ++i)
    layer.scratch.push_back({"sum", kFloatBytes * sizes.rows * sizes.hidden});
}

// Makes lists of parts. A meeting's tensor is that of all ranks together.
class PartsOfRank {
 public:
  explicit PartsOfRank(const Model& model) : size_(model.tensor.size), sizes_(model) {}

  // Gathers or scatters a row of so many bytes for each token.
  Part Gather(std::int64_t row_bytes) const { return Meeting(PartKind::kGather, row_bytes); }
  Part Scatter(std::int64_t row_bytes) const { return Meeting(PartKind::kScatter, row_bytes); }
  std::int64_t activation() const { return kFloatBytes * sizes_.hidden; }  // bytes of a row

 private:
  Part Meeting(PartKind kind, std::int64_t row_bytes) const {
    return {.kind = kind,
            .group = PartGroup::kTensor,
            .bytes = row_bytes * sizes_.rows * (size_ - 1) / size_};
  }

  const int size_;
  const Sizes sizes_;
};

// Returns what a rank passes on of the gradients of the layer that are added up.
std::int64_t NormBytes(const Layer& layer) {
  std::int64_t bytes = 0;
  for (const Parameter& parameter : layer.parameters) {
    if (!parameter.split.summed) continue;
    for (int holders = 1; holders < parameter.split.holders; holders *= 2)
      bytes += kFloatBytes * parameter.elements();
  }
  return bytes;
}

// Lists where the ranks meet in the layer's passes (worker/train/split_*).
LayerParts MeetingsOf(const Layer& layer, const Model& model) {
  if (model.tensor.size == 1) return {};
  const PartsOfRank parts(model);
  const std::int64_t norm_bytes = NormBytes(layer);
  const Part compute{};
  const Part gather = parts.Gather(parts.activation()), scatter = parts.Scatter(parts.activation());
  if (layer.kind == LayerKind::kEmbedding) {
    return {.forward = {compute, scatter, compute},
            .input_grad = {compute, gather},
            .norm_bytes = norm_bytes};
  }
  if (layer.kind == LayerKind::kGpt2Head || layer.kind == LayerKind::kLlamaHead) {
    const Part softmax =
        parts.Gather(HeadStash::kSoftmaxBytes * NumVocabularyBlocks(model.config.vocab));
    return {.forward = {compute, gather, compute, softmax, compute},
            .input_grad = {compute, scatter, compute},
            .norm_bytes = norm_bytes};
  }
  const Part norm = parts.Gather(Bytes(model.precisions.products, model.config.hidden));
  return {
      .forward = {compute, norm, compute, scatter, compute, norm, compute, scatter, compute},
      .input_grad = {compute, gather, compute, scatter, compute, gather, compute, scatter, compute},
      .full = {compute, norm, compute, scatter, compute, norm, compute},
      .norm_bytes = norm_bytes};
}

// Scales the layer's work to this rank's part of it.
void SplitCost(Layer& layer, double part, int ranks) {
  LayerCost& cost = layer.cost;
  for (double* const flops : {&cost.forward_flops, &cost.input_grad_flops, &cost.weight_grad_flops,
                              &cost.recompute_flops}) {
    *flops *= part;
  }
  cost.output_bytes /= ranks;
}

// Returns the part of the head's products that the rank computes.
double PartOfWords(const Model& model) {
  const std::int64_t vocab = model.config.vocab;
  const auto [first, last] = BlocksOf(model.tensor, vocab);
  const auto end = [&](int blocks) { return std::min(vocab, blocks * kVocabularyBlock); };
  return static_cast<double>(end(last) - end(first)) / static_cast<double>(vocab);
}

}  // namespace

std::vector<FieldError> CheckShare(const ModelConfig& config, int microbatch,
                                   const TensorShare& share) {
  const int leaves = share.leaves;
  FieldRules rules;
  const auto check = [&](bool holds, std::string rule, std::string fix) {
    const bool named = leaves != share.size;
    return rules.Check(holds, {.field = named ? "parallelism.tensor_leaves" : "parallelism.tensor",
                               .value = absl::StrCat(leaves),
                               .rule = std::move(rule),
                               .fix = std::move(fix)});
  };
  const bool possible = share.size >= 1 && share.index >= 0 && share.index < share.size &&
                        std::has_single_bit(static_cast<unsigned>(leaves)) &&
                        leaves % share.size == 0;
  if (!check(possible,
             absl::StrCat("must be a power of two and a multiple of parallelism.tensor (",
                          share.size, ")"),
             "use 2, 4 or 8")) {
    return rules.Take();
  }
  const auto divides = [&](std::string_view what, std::int64_t size) {
    check(size % leaves == 0, absl::StrCat("must divide ", std::string(what), " (", size, ")"),
          absl::StrCat("use at most ", std::gcd(size, std::int64_t{1} << 30)));
  };
  divides("model.heads", config.heads);
  divides("model.inner", config.inner);
  divides("the tokens of a microbatch", Tokens(config, microbatch));
  check(config.kv_heads % leaves == 0 || leaves % config.kv_heads == 0,
        absl::StrCat("must divide model.kv_heads (", config.kv_heads, ") or be a multiple of it"),
        "use a power of two that does");
  check(!config.mixture.has_value(), "experts are not split over ranks",
        "leave out parallelism.tensor and tensor_leaves");
  return rules.Take();
}

BlocksOfRank BlocksOf(const TensorShare& share, std::int64_t vocab) {
  const std::int64_t blocks = NumVocabularyBlocks(vocab);
  return {.first = static_cast<int>(blocks * share.index / share.size),
          .last = static_cast<int>(blocks * (share.index + 1) / share.size)};
}

void SplitLayers(Model& model) {
  for (Layer& layer : model.layers) {
    for (Parameter& parameter : layer.parameters) SplitParameter(parameter, model);
    double part = 1.0 / model.tensor.size;
    switch (layer.kind) {
      case LayerKind::kEmbedding:
        SplitEmbedding(layer, model);
        break;
      case LayerKind::kGpt2Block:
      case LayerKind::kLlamaBlock:
      case LayerKind::kQwen3Block:
        SplitBlock(layer, model);
        break;
      case LayerKind::kGpt2Head:
      case LayerKind::kLlamaHead:
        SplitHead(layer, model);
        part = PartOfWords(model);
        break;
      case LayerKind::kMixtralBlock:
      case LayerKind::kQwen3MoeBlock:
      case LayerKind::kEmulated:
        TAKT_CHECK(false && "nothing splits these layers");
    }
    SplitCost(layer, part, model.tensor.size);
    layer.parts = MeetingsOf(layer, model);
  }
}

std::vector<std::int64_t> WholeShape(const Parameter& parameter) {
  std::vector<std::int64_t> shape = parameter.shape;
  shape[0] /= parameter.split.count;
  shape[static_cast<std::size_t>(parameter.split.dimension)] *= parameter.split.pieces;
  return shape;
}

Parameter PartOfRank(const Parameter& mine, const TensorShare& share, int rank) {
  TAKT_CHECK(!mine.by_word);
  Parameter part = mine;
  const TensorShare its = ShareOf(share, rank);
  const bool copied = mine.split.pieces == 1 && !mine.split.summed;
  part.split = copied ? CopyOf(its) : SplitOf(mine.split.pieces, its);
  part.split.dimension = mine.split.dimension;
  part.split.sections = mine.split.sections;
  return part;
}

absl::Status ForEachRun(const Parameter& parameter,
                        absl::FunctionRef<absl::Status(const ElementRun&)> visit) {
  TAKT_CHECK(!parameter.by_word);
  const Split& split = parameter.split;
  if (split.pieces == 1) return visit({.count = parameter.elements()});
  const std::vector<std::int64_t> whole = WholeShape(parameter);
  // The elements before the cut dimension count as lines, those behind it as the unit of a run.
  const std::int64_t lines = split.dimension == 0 ? 1 : whole[0];
  const std::int64_t unit = split.dimension == 0 && whole.size() > 1 ? whole[1] : 1;
  const std::int64_t length = whole[static_cast<std::size_t>(split.dimension)] * unit;
  const std::int64_t section = length / split.sections;
  const std::int64_t count = section / split.pieces;
  std::int64_t here = 0;
  for (int piece = split.first; piece < split.first + split.count; ++piece) {
    for (std::int64_t line = 0; line < lines; ++line) {
      for (int s = 0; s < split.sections; ++s, here += count) {
        RETURN_IF_ERROR(visit(
            {.here = here, .whole = line * length + s * section + piece * count, .count = count}));
      }
    }
  }
  return absl::OkStatus();
}

LeafPiece PieceOf(const Parameter& parameter, const TensorShare& share, int leaf) {
  const Split& split = parameter.split;
  return {.piece = leaf * split.pieces / share.leaves - split.first,
          .gradient = leaf % split.gradients};
}

std::int64_t ElementsHere(const Model& model, const Parameter& parameter) {
  if (parameter.away) return 0;
  if (!parameter.by_word || model.tensor.size == 1) return parameter.elements();
  const std::int64_t vocab = parameter.shape[0];
  const auto [first, last] = BlocksOf(model.tensor, vocab);
  const auto row = [&](int block) { return std::min(vocab, block * kVocabularyBlock); };
  return (row(last) - row(first)) * (parameter.elements() / vocab);
}

}  // namespace takt::model
