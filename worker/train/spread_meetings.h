// SPDX-License-Identifier: Apache-2.0
// What all ranks of a pipeline pass to one another where the vocabulary is spread: the five
// meetings. Nothing here adds in an order that depends on who has which words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/mesh/vocabulary_split.h"
#include "worker/backend/ops.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Every rank makes the same calls in the same order. Memory is the host's. Letters: N rows of
// tokens of a microbatch, C hidden, D blocks of words.
// Thread: one caller at a time.  Blocks: until the ranks that a call needs have come.
// Errors: as transport::Collective.
class SpreadMeetings {
 public:
  struct Options {
    transport::Collective* group = nullptr;  // of the pp ranks, in their order; borrowed
    mesh::VocabularyEnds ends;
    int root = 0;                                   // the pp rank with the last stage
    int first = 0;                                  // the pp rank with stage 0
    std::int64_t rows = 0, columns = 0, vocab = 0;  // N, C and the words
  };
  using Buffers = std::span<const std::span<std::byte>>;

  explicit SpreadMeetings(Options options);

  // SHARE: copies the norm's output [N,C] of the root to every rank.
  absl::Status Share(StepId step, std::span<std::byte> norm) const;
  // GATHER: copies every rank's softmax parts [D,N] to every rank.
  absl::Status Gather(StepId step, backend::SoftmaxPart* parts) const;
  // RETURN: adds the partial sums that all ranks have. mine: this rank's. sums: on the root, at
  // least as many buffers as are in use at once; the first one gets the whole sum.
  absl::Status Return(StepId step, Buffers mine, Buffers sums) const;
  // ROWS: copies the rows of the tokens' words to `output` [N,C] on the rank of stage 0. table:
  // this rank's rows. scratch: [N,C].
  absl::Status Rows(StepId step, const std::int32_t* tokens, const float* table,
                    std::span<float> scratch, float* output) const;
  // ROWS_GRAD: adds `d_output` [N,C] of the rank of stage 0, row by row in their order, to the
  // gradients of the rows that are here. accumulate: false: all of these are set to zero first.
  absl::Status RowsGrad(StepId step, const std::int32_t* tokens, const float* d_output,
                        std::span<float> scratch, float* gradient, bool accumulate) const;

 private:
  // Returns the positions of the tokens whose words a rank has, by rank and in ascending order.
  std::vector<std::vector<std::int64_t>> PositionsByOwner(const std::int32_t* tokens) const;
  // Cuts scratch into the rows of each rank, by rank.
  std::vector<std::span<float>> Cut(std::span<float> scratch,
                                    const std::vector<std::vector<std::int64_t>>& positions) const;
  mesh::WordRun words() const {
    return mesh::WordsOf(options_.ends, PpRank(options_.group->index()), options_.vocab);
  }

  const Options options_;
};

}  // namespace takt::train
