// SPDX-License-Identifier: Apache-2.0
// The experts of a mixture where several ranks share them (docs/adr/0013-experts-over-ranks.md).
// It computes what Experts does, with the same bits: the rows of each rank are multiplied apart,
// and have gradients of their own. Letters as in expert_exchange.h, and F: width of an expert.
// Nothing uses it yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/backend/backend.h"
#include "worker/train/expert_exchange.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Every rank of the group makes the same calls in the same order. Memory is the host's.
// Thread: one caller at a time.  Blocks: until the other ranks have come.
// Errors: as ExpertExchange and the backend.
class SharedExperts {
 public:
  // The matrices of an expert.
  struct Matrices {
    const float* gate = nullptr;  // [F,C]
    const float* up = nullptr;    // [F,C]
    const float* down = nullptr;  // [C,F]
  };
  // Their gradients by the rows of one rank.
  struct Gradients {
    float* gate = nullptr;
    float* up = nullptr;
    float* down = nullptr;
  };
  struct Options {
    transport::Collective* group = nullptr;  // of the ranks that share the experts, in their order
    backend::Backend* backend = nullptr;
    std::int64_t experts = 0, hidden = 0, inner = 0;  // E, C, F
    std::vector<Matrices> here;                       // of this rank's E/e experts
  };
  // All pointers are borrowed.
  explicit SharedExperts(const Options& options)
      : options_(options), exchange_(*options.group, options.experts) {}

  // What F of a microbatch leaves to I and W on the rank that has the experts: the rows that came
  // to it, and what it computed of them.
  struct Pass {
    ExpertArrivals arrivals;
    std::vector<float> input, weights;     // [R,C], [R]
    std::vector<float> gate, up, product;  // [R,F]; I overwrites gate and up with their gradients
    std::vector<float> d_output = {};      // [R,C], which I adds
  };
  // A microbatch of this rank, as its router chose for it.
  struct Routed {
    backend::ExpertRows rows;
    const float* weights = nullptr;  // [N*k], by pair
  };
  // Adds the experts of each token to `output` [N,C]. norm: [N,C].
  absl::StatusOr<Pass> Forward(StepId step, const Routed& routed, const float* norm, float* output);
  // Computes the gradients by weights, [N*k] by pair, and adds those by the norm's output to
  // `d_norm` [N,C]. d_output: [N,C].
  absl::Status InputGrad(StepId step, const Routed& routed, const float* d_output, Pass& pass,
                         float* d_weights, float* d_norm);
  // Adds the gradients of the matrices, or overwrites them. It meets nobody.
  // gradients: [e,E/e], by the rank whose rows they are of.
  absl::Status WeightGrad(const Pass& pass, std::span<const Gradients> gradients, bool accumulate);

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
    const float* Matrices::*matrix;
    bool from_hidden = false, backward = false;
    const float* a = nullptr;
    float* c = nullptr;
  };
  absl::Status Multiply(const Source& source, const Product& product);
  // Brings rows back and adds each to its token, in ascending order of experts.
  absl::Status AddToTokens(StepId step, const Routed& routed, const ExpertArrivals& arrivals,
                           std::span<const float> arrived, float* tokens);
  // Returns the gathered rows [N*k,columns] of what is by token.
  static std::vector<float> RowsOfTokens(const backend::ExpertRows& rows, const float* by_token,
                                         std::int64_t columns);

  const Options options_;
  ExpertExchange exchange_;
};

}  // namespace takt::train
