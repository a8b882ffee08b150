// SPDX-License-Identifier: Apache-2.0
#include "worker/train/shared_experts.h"

#include <cstddef>
#include <utility>

#include "common/base/status.h"

namespace takt::train {

absl::Status SharedExperts::ForSources(const ExpertArrivals& arrivals,
                                       absl::FunctionRef<absl::Status(const Source&)> body) {
  for (int rank = 0; rank < arrivals.num_ranks(); ++rank) {
    const ExpertArrivals::Run& run = arrivals.ReceivedFrom(rank);
    if (run.count == 0) continue;
    RETURN_IF_ERROR(body({.rows = arrivals.RowsFrom(rank), .first = run.first}));
  }
  return absl::OkStatus();
}

absl::Status SharedExperts::Multiply(const Source& source, const Product& product) {
  const std::int64_t n = product.from_hidden ? options_.inner : options_.hidden;
  const std::int64_t k = product.from_hidden ? options_.hidden : options_.inner;
  for (std::int64_t e = 0; e < source.rows.experts; ++e) {
    const float* const matrix = options_.here[static_cast<std::size_t>(e)].*product.matrix;
    RETURN_IF_ERROR(options_.backend->Run(backend::ExpertMatmul{.rows = source.rows,
                                                                .expert = e,
                                                                .a = product.a + source.first * k,
                                                                .b = matrix,
                                                                .c = product.c + source.first * n,
                                                                .b_transposed = !product.backward,
                                                                .n = n,
                                                                .k = k}));
  }
  return absl::OkStatus();
}

std::vector<float> SharedExperts::RowsOfTokens(const backend::ExpertRows& rows,
                                               const float* by_token, std::int64_t columns) {
  std::vector<float> packed;
  packed.reserve(static_cast<std::size_t>(rows.count() * columns));
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const float* const from = by_token + rows.pairs[row] / rows.chosen * columns;
    packed.insert(packed.end(), from, from + columns);
  }
  return packed;
}

absl::Status SharedExperts::AddToTokens(StepId step, const Routed& routed,
                                        const ExpertArrivals& arrivals,
                                        std::span<const float> arrived, float* tokens) {
  const backend::ExpertRows& rows = routed.rows;
  std::vector<float> back(static_cast<std::size_t>(rows.count() * options_.hidden));
  RETURN_IF_ERROR(exchange_.Combine(step, arrivals, arrived, back));
  const float* next = back.data();
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    float* const token = tokens + rows.pairs[row] / rows.chosen * options_.hidden;
    for (std::int64_t i = 0; i < options_.hidden; ++i) token[i] += *next++;
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedExperts::Pass> SharedExperts::Forward(StepId step, const Routed& routed,
                                                           const float* norm, float* output) {
  const backend::ExpertRows& rows = routed.rows;
  const auto experts = static_cast<std::size_t>(options_.experts);
  ASSIGN_OR_RETURN(ExpertArrivals arrivals,
                   exchange_.Announce(step, std::span(rows.offsets, experts + 1)));
  const auto received = static_cast<std::size_t>(arrivals.num_received());
  const auto hidden = static_cast<std::size_t>(options_.hidden);
  const auto inner = static_cast<std::size_t>(options_.inner);
  Pass pass{.arrivals = std::move(arrivals),
            .input = std::vector<float>(received * hidden),
            .weights = std::vector<float>(received),
            .gate = std::vector<float>(received * inner),
            .up = std::vector<float>(received * inner),
            .product = std::vector<float>(received * inner)};
  RETURN_IF_ERROR(exchange_.Dispatch(step, pass.arrivals, RowsOfTokens(rows, norm, options_.hidden),
                                     pass.input));
  std::vector<float> weights;
  for (std::int64_t row = 0; row < rows.count(); ++row)
    weights.push_back(routed.weights[rows.pairs[row]]);
  RETURN_IF_ERROR(exchange_.Dispatch(step, pass.arrivals, weights, pass.weights));
  std::vector<float> results(received * hidden);
  RETURN_IF_ERROR(ForSources(pass.arrivals, [&](const Source& source) -> absl::Status {
    const std::int64_t first = source.first * options_.inner;
    RETURN_IF_ERROR(Multiply(source, {.matrix = &Matrices::gate,
                                      .from_hidden = true,
                                      .a = pass.input.data(),
                                      .c = pass.gate.data()}));
    RETURN_IF_ERROR(Multiply(source, {.matrix = &Matrices::up,
                                      .from_hidden = true,
                                      .a = pass.input.data(),
                                      .c = pass.up.data()}));
    RETURN_IF_ERROR(options_.backend->Run(
        backend::ExpertSwigluForward{.rows = source.rows,
                                     .gate = pass.gate.data() + first,
                                     .up = pass.up.data() + first,
                                     .weights = pass.weights.data() + source.first,
                                     .output = pass.product.data() + first,
                                     .columns = options_.inner}));
    return Multiply(source,
                    {.matrix = &Matrices::down, .a = pass.product.data(), .c = results.data()});
  }));
  RETURN_IF_ERROR(AddToTokens(step, routed, pass.arrivals, results, output));
  return pass;
}

absl::Status SharedExperts::InputGrad(StepId step, const Routed& routed, const float* d_output,
                                      Pass& pass, float* d_weights, float* d_norm) {
  const backend::ExpertRows& rows = routed.rows;
  pass.d_output.resize(pass.input.size());
  RETURN_IF_ERROR(exchange_.Dispatch(step, pass.arrivals,
                                     RowsOfTokens(rows, d_output, options_.hidden), pass.d_output));
  std::vector<float> d_product(pass.product.size()), d_arrived_weights(pass.weights.size());
  std::vector<float> by_gate(pass.input.size()), by_up(pass.input.size());
  RETURN_IF_ERROR(ForSources(pass.arrivals, [&](const Source& source) -> absl::Status {
    const std::int64_t first = source.first * options_.inner;
    float *const gate = pass.gate.data() + first, *const up = pass.up.data() + first;
    RETURN_IF_ERROR(Multiply(source, {.matrix = &Matrices::down,
                                      .from_hidden = true,
                                      .backward = true,
                                      .a = pass.d_output.data(),
                                      .c = d_product.data()}));
    RETURN_IF_ERROR(options_.backend->Run(
        backend::ExpertSwigluBackward{.rows = source.rows,
                                      .gate = gate,
                                      .up = up,
                                      .weights = pass.weights.data() + source.first,
                                      .d_output = d_product.data() + first,
                                      .d_gate = gate,
                                      .d_up = up,
                                      .d_weights = d_arrived_weights.data() + source.first,
                                      .columns = options_.inner}));
    RETURN_IF_ERROR(Multiply(
        source,
        {.matrix = &Matrices::gate, .backward = true, .a = pass.gate.data(), .c = by_gate.data()}));
    return Multiply(
        source,
        {.matrix = &Matrices::up, .backward = true, .a = pass.up.data(), .c = by_up.data()});
  }));
  std::vector<float> back(static_cast<std::size_t>(rows.count()));
  RETURN_IF_ERROR(exchange_.Combine(step, pass.arrivals, d_arrived_weights, back));
  for (std::int64_t row = 0; row < rows.count(); ++row)
    d_weights[rows.pairs[row]] = back[static_cast<std::size_t>(row)];
  RETURN_IF_ERROR(AddToTokens(step, routed, pass.arrivals, by_gate, d_norm));
  return AddToTokens(step, routed, pass.arrivals, by_up, d_norm);
}

absl::Status SharedExperts::WeightGrad(const Pass& pass, std::span<const Gradients> gradients,
                                       bool accumulate) {
  const std::int64_t hidden = options_.hidden, inner = options_.inner;
  const std::size_t here = options_.here.size();
  TAKT_CHECK(gradients.size() == here * static_cast<std::size_t>(pass.arrivals.num_ranks()));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& [gate, up, down] = gradients[i];
    const int rank = static_cast<int>(i / here);
    const ExpertArrivals::Run& run = pass.arrivals.ReceivedFrom(rank);
    if (run.count == 0) {
      if (accumulate) continue;
      for (float* const gradient : {gate, up, down}) {
        RETURN_IF_ERROR(
            options_.backend->Run(backend::Fill{.output = gradient, .count = hidden * inner}));
      }
      continue;
    }
    backend::ExpertMatmulTransposed op{.rows = pass.arrivals.RowsFrom(rank),
                                       .expert = static_cast<std::int64_t>(i % here),
                                       .a = pass.d_output.data() + run.first * hidden,
                                       .b = pass.product.data() + run.first * inner,
                                       .c = down,
                                       .a_by_token = true,
                                       .accumulate = accumulate,
                                       .m = hidden,
                                       .n = inner};
    RETURN_IF_ERROR(options_.backend->Run(op));
    op.a_by_token = false;
    op.b = pass.input.data() + run.first * hidden;
    std::swap(op.m, op.n);
    op.a = pass.up.data() + run.first * inner;
    op.c = up;
    RETURN_IF_ERROR(options_.backend->Run(op));
    op.a = pass.gate.data() + run.first * inner;
    op.c = gate;
    RETURN_IF_ERROR(options_.backend->Run(op));
  }
  return absl::OkStatus();
}

}  // namespace takt::train
