// SPDX-License-Identifier: Apache-2.0
// Passes between the ranks that share sequences what they need from one another inside attention:
// keys and values, and what their queries add to the gradients of these. Letters: B sequences, T
// tokens of each, K columns of keys. common/model/context_layers.h says which pieces of a sequence
// a rank has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/model/context_layers.h"
#include "worker/engine/part_cursor.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Has the rows [B,T/C,K] of this rank's tokens, `stride` floats apart, piece after piece, and
// likewise their gradients.
struct KeysHere {
  const float* keys = nullptr;
  const float* values = nullptr;
  std::int64_t stride = 0;
};
struct KeyGradsHere {
  float* keys = nullptr;
  float* values = nullptr;
  std::int64_t stride = 0;
};

// Has the rows [B,T,K] of all tokens in the order of their positions.
struct KeysOfAll {
  float* keys = nullptr;
  float* values = nullptr;
};

// Every rank makes the same calls in the same order. Memory is the host's, and what was computed
// before a call is done. A piece passes between its rank and each rank that sees it, straight and
// once. Sums are added in ascending order of ranks, so no transport can change them.
// Thread: the compute lane's.  Blocks: until the ranks that a call needs have come.
// Errors: as transport::Collective.
class ContextMeetings {
 public:
  struct Options {
    transport::Collective* group = nullptr;  // of the ranks, in their order; at least two
    engine::PartCursor* cursor = nullptr;    // told of each meeting; borrowed, as the group
    std::int64_t batch = 0, context = 0, columns = 0;  // B, T, K
    std::int64_t window = 0;                           // ModelConfig::EffectiveWindow
    bool shapes_only = false;                          // nothing is in memory (meta_run.h)
  };
  explicit ContextMeetings(const Options& options);

  // Says in which step the following calls are.
  void BeginStep(StepId step) { step_ = step; }

  const model::ContextShare& share() const { return share_; }
  // Returns the start of the one document of each row's sequence, [B,T/C], as ops have it where
  // their rows are not all tokens (worker/backend/ops.h).
  const std::int32_t* starts() const { return starts_.data(); }

  // Copies the rows of all tokens that this rank sees to `all`. Those of the others become zero.
  absl::Status GatherKeys(const KeysHere& mine, const KeysOfAll& all);
  // Adds up what the queries of each rank add to the gradients of keys and values, and writes the
  // sums of this rank's tokens to `mine`.
  // partial: of this rank's queries. received: [B,T,K], whose contents are overwritten.
  absl::Status SumKeyGradients(const KeysOfAll& partial, float* received, const KeyGradsHere& mine);

 private:
  // One of the two pieces of a sequence that each rank has.
  struct Place {
    std::int64_t sequence = 0;
    int half = 0;
  };
  absl::Status Meet(absl::FunctionRef<absl::Status(const Place&)> pass);
  bool Sees(int rank, int piece) const;
  int PieceOf(int rank, int half) const;
  // Returns the rows of a piece among those of all tokens.
  std::span<float> Piece(float* all, std::int64_t sequence, int piece) const;
  // Returns the first row of the place among this rank's.
  std::int64_t RowOf(const Place& at) const { return (2 * at.sequence + at.half) * length_; }

  absl::Status Gather(const Place& at, const float* mine, std::int64_t stride, float* all) const;
  absl::Status Sum(const Place& at, float* partial, float* received, float* mine,
                   std::int64_t stride) const;

  const Options options_;
  const model::ContextShare share_;
  const std::int64_t length_;  // tokens of a piece
  std::vector<std::int32_t> starts_;
  StepId step_{0};
};

// Returns the starts for ops that count positions: those of documents, or, where these are null, of
// sequences that several ranks share. context: null: no other rank has tokens of them.
inline const std::int32_t* PositionStarts(const std::int32_t* documents,
                                          const ContextMeetings* context) {
  return documents != nullptr || context == nullptr ? documents : context->starts();
}

// Calls `visit` with the first of the whole's tokens, the first of the rank's, and how many there
// are, for each run of neighbouring tokens of `batch` sequences of `context` that the rank has.
void ForEachRunOfTokens(
    const model::ContextShare& share, std::int64_t batch, std::int64_t context,
    absl::FunctionRef<void(std::int64_t whole, std::int64_t here, std::int64_t count)> visit);

// Picks the rank's tokens and targets of a microbatch, and turns starts of documents into those
// that ops have where their rows are not all tokens.
// whole: [B,T]; here: [B,T/C]. Both are empty, or neither.
void PickTokens(const model::ContextShare& share, std::int64_t context,
                std::span<const std::int32_t> whole, std::span<std::int32_t> here);
void PickStarts(const model::ContextShare& share, std::int64_t context,
                std::span<const std::int32_t> whole, std::span<std::int32_t> here);

}  // namespace takt::train
