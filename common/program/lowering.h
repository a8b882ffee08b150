// SPDX-License-Identifier: Apache-2.0
// Makes one program per pp rank from a valid schedule: LOAD, sends, receives, reductions, norm,
// optimizer, buffer slots.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/program/program.h"
#include "common/schedule/schedule.h"

namespace takt::program {

struct StageShape {
  // The stage has the layers [first_layer, last_layer), with one gradient bucket each.
  LayerId first_layer{0}, last_layer{1};
  // The bytes of an activation message, and of the gradient message of the same boundary.
  std::int64_t output_bytes = 0;
  std::int64_t stash_bytes = 0;
  std::int64_t recomputed_bytes = 0;  // from an I to its W; 0: the stash keeps everything
  // The parts of each layer's passes, where ranks share layers; `selective` and `full` mean nothing
  // here. Empty: all layers only compute.
  std::vector<model::LayerParts> layers;
};

// The sizes of what S, T and the meetings pass and keep. A vector has an entry for each pp rank, or
// none where sizes do not matter.
struct VocabularyShape {
  std::int64_t head_input_bytes = 0;             // the norm's output, and its gradient
  std::vector<std::int64_t> stash_bytes;         // kVocabularyStash
  std::vector<std::int64_t> partial_grad_bytes;  // kPartialGrad
  std::vector<std::int64_t> rows_bytes;          // what ROWS or ROWS_GRAD moves, an estimate
  std::vector<std::int64_t> parts_bytes;         // what GATHER passes on
};

// These are a stage that goes forward and one that goes backward.
inline constexpr int kMostUnsharded = 2;

struct LowerOptions {
  std::vector<StageShape> stages;  // empty: one layer of size 0 per stage
  // There is data parallelism: each layer has a REDUCE_GRAD right after the last W or B of its
  // stage. A schedule with two copies of the weights has them whenever it has an optimizer.
  bool reduce_gradients = false;
  // REDUCE_TIED on the ranks of the first and the last stage; on all ranks, each for its own rows,
  // where the vocabulary is spread.
  bool tied_embeddings = false;
  // Every F, I and W reads tokens, as it needs to know where documents begin.
  bool separate_documents = false;
  // W that follow each other on a rank become one instruction, which sums in another order. Slots
  // are then handed out in turn, so that neighbouring microbatches have neighbouring slots.
  bool merge_weight_grads = false;
  bool optimizer = true;  // NORM_PARTIAL, NORM_EXCHANGE and OPT; false: none of them
  // The ranks that sum a gradient share the optimizer's state: each layer has a GATHER_WEIGHTS
  // after OPT.
  bool shard_optimizer = false;
  // With shard_optimizer: they share the weights too. Instead of GATHER_WEIGHTS, UNSHARD makes the
  // weights of a stage whole before it computes, and RESHARD frees them, so that a rank has whole
  // weights of kMostUnsharded of its stages at a time.
  bool free_weights = false;
  std::optional<VocabularyShape> vocabulary;  // set exactly if the schedule spreads it
};

// Receives are listed in their sender's order on every ordered pair of ranks and direction, and
// have slots enough never to block what does not need them.
// kInvalidArgument (FieldError): as schedule::Validate; a number of stages or layers that do not
// fit the schedule; sizes of a vocabulary that do not; without a flush, a schedule whose steps
// cannot overlap (Unroll), too few microbatches, sums over ranks of a gradient that is applied at
// once, or shards of the optimizer; shards where no ranks sum gradients; weights to free where no
// rank has more than kMostUnsharded stages, or where the vocabulary is spread.
absl::StatusOr<std::vector<Program>> Lower(const schedule::Schedule& schedule,
                                           const LowerOptions& options);

}  // namespace takt::program
