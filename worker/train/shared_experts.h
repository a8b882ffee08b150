// SPDX-License-Identifier: Apache-2.0
// Computes the experts of a mixture where several ranks share them
// (docs/adr/0013-experts-over-ranks.md). It computes what Experts does, with the same bits: the
// rows of each rank are multiplied apart, and have gradients of their own. Letters as in
// expert_exchange.h, and F: width of an expert; R: the rows that come to this rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/train/expert_exchange.h"
#include "worker/train/expert_meetings.h"

namespace takt::train {

// Every rank of the group makes the same calls in the same order. Memory is the backend's.
// Thread: one caller at a time.  Blocks: as ExpertExchange.
// Errors: as ExpertExchange and the backend.
class SharedExperts {
 public:
  // Points to a matrix of an expert, in f32 or packed (ParameterRef).
  struct Matrix {
    const float* weight = nullptr;
    const backend::Bf16* packed = nullptr;
    const backend::Bf16* packed_transposed = nullptr;
  };
  struct Matrices {
    Matrix gate;  // [F,C]
    Matrix up;    // [F,C]
    Matrix down;  // [C,F]
  };
  // Their gradients by the rows of one rank.
  struct Gradients {
    float* gate = nullptr;
    float* up = nullptr;
    float* down = nullptr;
  };
  struct Options {
    ExpertMeetings* meetings = nullptr;
    backend::Backend* backend = nullptr;
    std::int64_t experts = 0, hidden = 0, inner = 0;  // E, C, F
    std::vector<Matrices> here;                       // of this rank's E/e experts
  };
  // All pointers are borrowed.
  explicit SharedExperts(const Options& options) : options_(options) {}

  // A microbatch of this rank, as its router chose for it.
  struct Routed {
    backend::ExpertRows rows;
    const std::int32_t* choices = nullptr;  // [N*k]: the expert of each pair
    const float* weights = nullptr;         // [N*k], by pair
  };
  // Has what F of a microbatch leaves to I and W on the rank that has the experts: the rows that
  // came to it, and what it computed of them.
  struct Stash {
    float *input = nullptr, *weights = nullptr;  // [R,C], [R]
    float *gate = nullptr, *up = nullptr;        // [R,F]; I overwrites them with their gradients
    float* product = nullptr;                    // [R,F]
    float* d_output = nullptr;                   // [R,C]; I writes it
  };
  // Has what a pass needs while it runs.
  struct Scratch {
    float *rows = nullptr, *pairs = nullptr;         // [N*k,C], [N*k]
    float *results = nullptr, *d_weights = nullptr;  // [R,C], [R]; F needs no d_weights
    float* d_product = nullptr;                      // [R,F], which only I needs
  };
  // Tells all ranks how many rows each one has for each expert, and returns which rows go where.
  // What is returned is kept by ExpertMeetings until the next such call with these offsets.
  // offsets: [e, E/e + 1], where it writes those of ExpertArrivals for ops.
  absl::StatusOr<const ExpertArrivals*> Announce(const Routed& routed, std::int32_t* offsets);
  // Computes the rows that came up to what the last product reads. norm: [N,C].
  absl::Status Forward(const Routed& routed, const ExpertArrivals& arrivals, const float* norm,
                       const Stash& stash, const Scratch& scratch);
  // Computes what the last product reads from the results of the others. Nobody meets.
  absl::Status Activate(const ExpertArrivals& arrivals, const Stash& stash);
  // Adds the experts of each token to `output` [N,C].
  absl::Status Output(const Routed& routed, const ExpertArrivals& arrivals, const Stash& stash,
                      const Scratch& scratch, float* output);
  // The gradients that I gets and gives.
  struct Backward {
    const float* d_output = nullptr;  // [N,C]
    float* d_weights = nullptr;       // [N*k] by pair: those by the router's weights
    float* d_norm = nullptr;          // [N,C], to which those by the norm's output are added
  };
  // begin_d_norm: called between the two, as the router's part of d_norm depends on d_weights and
  // comes first.
  absl::Status InputGrad(const Routed& routed, const ExpertArrivals& arrivals,
                         const Backward& backward, const Stash& stash, const Scratch& scratch,
                         absl::FunctionRef<absl::Status()> begin_d_norm);
  // Adds the gradients of the matrices, or overwrites them. It has no meetings. gradients: [e,E/e],
  // by the rank whose rows they are of.
  absl::Status WeightGrad(const ExpertArrivals& arrivals, const Stash& stash,
                          std::span<const Gradients> gradients, bool accumulate);

 private:
  // The rows that came from one rank.
  struct Source {
    backend::ExpertRows rows;
    std::int64_t first = 0;  // among all that came
  };
  // Calls `body` for each rank from which rows came.
  static absl::Status ForSources(const ExpertArrivals& arrivals,
                                 absl::FunctionRef<absl::Status(const Source&)> body);
  // Multiplies rows [.,C] to [.,F], or the reverse.
  // backward: by the transpose.
  struct Product {
    Matrix Matrices::*matrix;
    bool from_hidden = false, backward = false;
    const float* a = nullptr;
    float* c = nullptr;
  };
  absl::Status Multiply(const Source& source, const Product& product);
  // Makes the gradients of an expert's matrices zeros, for each of these.
  absl::Status Clear(std::span<const Gradients> gradients);
  // Fills `packed` [N*k,C] with the rows of what is by token.
  absl::Status PackRows(const Routed& routed, const float* by_token, float* packed);
  // Adds rows [N*k,C] to their tokens, in ascending order of experts.
  absl::Status AddToTokens(const Routed& routed, const float* packed, float* tokens);

  static std::span<float> RowsOf(float* memory, std::int64_t rows, std::int64_t columns) {
    return {memory, static_cast<std::size_t>(rows * columns)};
  }

  const Options options_;
};

}  // namespace takt::train
