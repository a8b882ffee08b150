// SPDX-License-Identifier: Apache-2.0
#include "worker/train/shared_experts.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/expert_share.h"

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
  std::vector<backend::ExpertMatrix> matrices;
  for (const Matrices& of_expert : options_.here) {
    const Matrix& matrix = of_expert.*product.matrix;
    if (matrix.packed == nullptr) {
      matrices.push_back({.b = matrix.weight});
    } else {
      matrices.push_back({.packed = product.backward ? matrix.packed : matrix.packed_transposed});
    }
  }
  return options_.backend->Run(backend::ExpertMatmul{.rows = source.rows,
                                                     .matrices = matrices,
                                                     .a = product.a + source.first * k,
                                                     .c = product.c + source.first * n,
                                                     .b_transposed = !product.backward,
                                                     .n = n,
                                                     .k = k});
}

void SharedExperts::PackRows(const backend::ExpertRows& rows, const float* by_token,
                             std::int64_t columns, float* packed) {
  for (std::int64_t row = 0; row < rows.count(); ++row)
    packed = std::copy_n(by_token + rows.pairs[row] / rows.chosen * columns, columns, packed);
}

void SharedExperts::AddToTokens(const backend::ExpertRows& rows, const float* packed,
                                float* tokens) const {
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    float* const token = tokens + rows.pairs[row] / rows.chosen * options_.hidden;
    for (std::int64_t i = 0; i < options_.hidden; ++i) token[i] += *packed++;
  }
}

absl::StatusOr<ExpertArrivals> SharedExperts::Announce(const Routed& routed,
                                                       std::span<std::int32_t> counts) {
  const auto experts = static_cast<std::size_t>(options_.experts);
  const std::span<const std::int32_t> offsets(routed.rows.offsets, experts + 1);
  RETURN_IF_ERROR(options_.meetings->Meet(
      [&] { return exchange_.Announce(options_.meetings->step(), offsets, counts); }));
  const model::ExpertShare& share = options_.meetings->share();
  return ExpertArrivals(counts, share.size, share.index);
}

absl::Status SharedExperts::Forward(const Routed& routed, const ExpertArrivals& arrivals,
                                    const float* norm, const Stash& stash, const Scratch& scratch) {
  const backend::ExpertRows& rows = routed.rows;
  const std::int64_t received = arrivals.num_received();
  const StepId step = options_.meetings->step();
  PackRows(rows, norm, options_.hidden, scratch.rows);
  for (std::int64_t row = 0; row < rows.count(); ++row)
    scratch.pairs[row] = routed.weights[rows.pairs[row]];
  RETURN_IF_ERROR(options_.meetings->Meet([&]() -> absl::Status {
    RETURN_IF_ERROR(exchange_.Dispatch(step, arrivals,
                                       RowsOf(scratch.rows, rows.count(), options_.hidden),
                                       RowsOf(stash.input, received, options_.hidden)));
    return exchange_.Dispatch(step, arrivals, RowsOf(scratch.pairs, rows.count(), 1),
                              RowsOf(stash.weights, received, 1));
  }));
  RETURN_IF_ERROR(ForSources(arrivals, [&](const Source& source) -> absl::Status {
    RETURN_IF_ERROR(Multiply(
        source,
        {.matrix = &Matrices::gate, .from_hidden = true, .a = stash.input, .c = stash.gate}));
    return Multiply(
        source, {.matrix = &Matrices::up, .from_hidden = true, .a = stash.input, .c = stash.up});
  }));
  return Activate(arrivals, stash);
}

absl::Status SharedExperts::Activate(const ExpertArrivals& arrivals, const Stash& stash) {
  return ForSources(arrivals, [&](const Source& source) {
    const std::int64_t first = source.first * options_.inner;
    return options_.backend->Run(
        backend::ExpertSwigluForward{.rows = source.rows,
                                     .gate = stash.gate + first,
                                     .up = stash.up + first,
                                     .weights = stash.weights + source.first,
                                     .output = stash.product + first,
                                     .columns = options_.inner});
  });
}

absl::Status SharedExperts::Output(const Routed& routed, const ExpertArrivals& arrivals,
                                   const Stash& stash, const Scratch& scratch, float* output) {
  RETURN_IF_ERROR(ForSources(arrivals, [&](const Source& source) {
    return Multiply(source, {.matrix = &Matrices::down, .a = stash.product, .c = scratch.results});
  }));
  const std::int64_t sent = routed.rows.count(), received = arrivals.num_received();
  RETURN_IF_ERROR(options_.meetings->Meet([&] {
    return exchange_.Combine(options_.meetings->step(), arrivals,
                             RowsOf(scratch.results, received, options_.hidden),
                             RowsOf(scratch.rows, sent, options_.hidden));
  }));
  AddToTokens(routed.rows, scratch.rows, output);
  return absl::OkStatus();
}

absl::Status SharedExperts::InputGrad(const Routed& routed, const ExpertArrivals& arrivals,
                                      const Backward& backward, const Stash& stash,
                                      const Scratch& scratch,
                                      absl::FunctionRef<absl::Status()> begin_d_norm) {
  const backend::ExpertRows& rows = routed.rows;
  const std::int64_t received = arrivals.num_received();
  const StepId step = options_.meetings->step();
  const std::span<float> own = RowsOf(scratch.rows, rows.count(), options_.hidden);
  const std::span<float> results = RowsOf(scratch.results, received, options_.hidden);
  PackRows(rows, backward.d_output, options_.hidden, scratch.rows);
  RETURN_IF_ERROR(options_.meetings->Meet([&] {
    return exchange_.Dispatch(step, arrivals, own,
                              RowsOf(stash.d_output, received, options_.hidden));
  }));
  RETURN_IF_ERROR(ForSources(arrivals, [&](const Source& source) -> absl::Status {
    const std::int64_t first = source.first * options_.inner;
    float *const gate = stash.gate + first, *const up = stash.up + first;
    RETURN_IF_ERROR(Multiply(source, {.matrix = &Matrices::down,
                                      .from_hidden = true,
                                      .backward = true,
                                      .a = stash.d_output,
                                      .c = scratch.d_product}));
    RETURN_IF_ERROR(options_.backend->Run(
        backend::ExpertSwigluBackward{.rows = source.rows,
                                      .gate = gate,
                                      .up = up,
                                      .weights = stash.weights + source.first,
                                      .d_output = scratch.d_product + first,
                                      .d_gate = gate,
                                      .d_up = up,
                                      .d_weights = scratch.d_weights + source.first,
                                      .columns = options_.inner}));
    return Multiply(
        source,
        {.matrix = &Matrices::gate, .backward = true, .a = stash.gate, .c = scratch.results});
  }));
  RETURN_IF_ERROR(options_.meetings->Meet([&]() -> absl::Status {
    RETURN_IF_ERROR(exchange_.Combine(step, arrivals, RowsOf(scratch.d_weights, received, 1),
                                      RowsOf(scratch.pairs, rows.count(), 1)));
    return exchange_.Combine(step, arrivals, results, own);
  }));
  for (std::int64_t row = 0; row < rows.count(); ++row)
    backward.d_weights[rows.pairs[row]] = scratch.pairs[row];
  RETURN_IF_ERROR(begin_d_norm());
  AddToTokens(rows, scratch.rows, backward.d_norm);
  RETURN_IF_ERROR(ForSources(arrivals, [&](const Source& source) {
    return Multiply(
        source, {.matrix = &Matrices::up, .backward = true, .a = stash.up, .c = scratch.results});
  }));
  RETURN_IF_ERROR(
      options_.meetings->Meet([&] { return exchange_.Combine(step, arrivals, results, own); }));
  AddToTokens(rows, scratch.rows, backward.d_norm);
  return absl::OkStatus();
}

absl::Status SharedExperts::WeightGrad(const ExpertArrivals& arrivals, const Stash& stash,
                                       std::span<const Gradients> gradients, bool accumulate) {
  const std::int64_t hidden = options_.hidden, inner = options_.inner;
  const std::size_t here = options_.here.size();
  TAKT_CHECK(gradients.size() == here * static_cast<std::size_t>(arrivals.num_ranks()));
  for (int rank = 0; rank < arrivals.num_ranks(); ++rank) {
    const auto of_rank = gradients.subspan(static_cast<std::size_t>(rank) * here, here);
    const ExpertArrivals::Run& run = arrivals.ReceivedFrom(rank);
    if (run.count == 0) {
      if (!accumulate) RETURN_IF_ERROR(Clear(of_rank));
      continue;
    }
    const auto all = [&of_rank](float* Gradients::*gradient) {
      std::vector<backend::ExpertGradient> list;
      for (const Gradients& each : of_rank) list.push_back({.c = each.*gradient});
      return list;
    };
    const auto down = all(&Gradients::down), up = all(&Gradients::up), gate = all(&Gradients::gate);
    backend::ExpertMatmulTransposed op{.rows = arrivals.RowsFrom(rank),
                                       .gradients = down,
                                       .a = stash.d_output + run.first * hidden,
                                       .b = stash.product + run.first * inner,
                                       .a_by_token = true,
                                       .in_bf16 = options_.here.front().down.packed != nullptr,
                                       .accumulate = accumulate,
                                       .m = hidden,
                                       .n = inner};
    RETURN_IF_ERROR(options_.backend->Run(op));
    op.a_by_token = false;
    op.b = stash.input + run.first * hidden;
    std::swap(op.m, op.n);
    op.a = stash.up + run.first * inner;
    op.gradients = up;
    RETURN_IF_ERROR(options_.backend->Run(op));
    op.a = stash.gate + run.first * inner;
    op.gradients = gate;
    RETURN_IF_ERROR(options_.backend->Run(op));
  }
  return absl::OkStatus();
}

absl::Status SharedExperts::Clear(std::span<const Gradients> gradients) {
  for (const auto& [gate, up, down] : gradients) {
    for (float* const gradient : {gate, up, down}) {
      RETURN_IF_ERROR(options_.backend->Run(
          backend::Fill{.output = gradient, .count = options_.hidden * options_.inner}));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::train
