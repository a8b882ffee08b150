// SPDX-License-Identifier: Apache-2.0
#include "worker/train/shared_experts.h"

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

absl::Status SharedExperts::PackRows(const Routed& routed, const float* by_token, float* packed) {
  return options_.backend->Run(backend::PackTokens{
      .rows = routed.rows, .by_token = by_token, .by_row = packed, .columns = options_.hidden});
}

absl::Status SharedExperts::AddToTokens(const Routed& routed, const float* packed, float* tokens) {
  return options_.backend->Run(backend::AddRowsToTokens{.rows = routed.rows,
                                                        .choices = routed.choices,
                                                        .by_row = packed,
                                                        .by_token = tokens,
                                                        .columns = options_.hidden});
}

absl::StatusOr<const ExpertArrivals*> SharedExperts::Announce(const Routed& routed,
                                                              std::int32_t* offsets) {
  ExpertMeetings& meetings = *options_.meetings;
  const model::ExpertShare& share = meetings.share();
  std::vector<std::int32_t> counts(static_cast<std::size_t>(share.size * options_.experts));
  RETURN_IF_ERROR(meetings.Meet(
      [&] { return meetings.exchange().Announce(meetings.step(), routed.rows, counts); }));
  // Nothing copies from the arrivals that are replaced: the meeting has waited for the backend.
  const ExpertArrivals& arrivals = meetings.ArrivedAt(offsets).rows.emplace(
      counts, share.size, share.index,
      ExpertArrivals::Places{.offsets = offsets, .row_numbers = meetings.row_numbers()});
  RETURN_IF_ERROR(options_.backend->CopyFromHost(std::as_bytes(arrivals.offsets()),
                                                 reinterpret_cast<std::byte*>(offsets)));
  return &arrivals;
}

absl::Status SharedExperts::Forward(const Routed& routed, const ExpertArrivals& arrivals,
                                    const float* norm, const Stash& stash, const Scratch& scratch) {
  const std::int64_t sent = routed.rows.count(), received = arrivals.num_received();
  ExpertMeetings& meetings = *options_.meetings;
  RETURN_IF_ERROR(PackRows(routed, norm, scratch.rows));
  RETURN_IF_ERROR(options_.backend->Run(
      backend::PackPairs{.rows = routed.rows, .by_pair = routed.weights, .by_row = scratch.pairs}));
  RETURN_IF_ERROR(meetings.Meet([&]() -> absl::Status {
    RETURN_IF_ERROR(meetings.exchange().Dispatch(meetings.step(), arrivals,
                                                 RowsOf(scratch.rows, sent, options_.hidden),
                                                 RowsOf(stash.input, received, options_.hidden)));
    return meetings.exchange().Dispatch(meetings.step(), arrivals, RowsOf(scratch.pairs, sent, 1),
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
  ExpertMeetings& meetings = *options_.meetings;
  RETURN_IF_ERROR(meetings.Meet([&] {
    return meetings.exchange().Combine(meetings.step(), arrivals,
                                       RowsOf(scratch.results, received, options_.hidden),
                                       RowsOf(scratch.rows, sent, options_.hidden));
  }));
  return AddToTokens(routed, scratch.rows, output);
}

absl::Status SharedExperts::InputGrad(const Routed& routed, const ExpertArrivals& arrivals,
                                      const Backward& backward, const Stash& stash,
                                      const Scratch& scratch,
                                      absl::FunctionRef<absl::Status()> begin_d_norm) {
  const std::int64_t sent = routed.rows.count(), received = arrivals.num_received();
  ExpertMeetings& meetings = *options_.meetings;
  ExpertExchange& exchange = meetings.exchange();
  const StepId step = meetings.step();
  const std::span<float> own = RowsOf(scratch.rows, sent, options_.hidden);
  const std::span<float> results = RowsOf(scratch.results, received, options_.hidden);
  RETURN_IF_ERROR(PackRows(routed, backward.d_output, scratch.rows));
  RETURN_IF_ERROR(meetings.Meet([&] {
    return exchange.Dispatch(step, arrivals, own,
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
  RETURN_IF_ERROR(meetings.Meet([&]() -> absl::Status {
    RETURN_IF_ERROR(exchange.Combine(step, arrivals, RowsOf(scratch.d_weights, received, 1),
                                     RowsOf(scratch.pairs, sent, 1)));
    return exchange.Combine(step, arrivals, results, own);
  }));
  RETURN_IF_ERROR(options_.backend->Run(backend::UnpackPairs{
      .rows = routed.rows, .by_row = scratch.pairs, .by_pair = backward.d_weights}));
  RETURN_IF_ERROR(begin_d_norm());
  RETURN_IF_ERROR(AddToTokens(routed, scratch.rows, backward.d_norm));
  RETURN_IF_ERROR(ForSources(arrivals, [&](const Source& source) {
    return Multiply(
        source, {.matrix = &Matrices::up, .backward = true, .a = stash.up, .c = scratch.results});
  }));
  RETURN_IF_ERROR(meetings.Meet([&] { return exchange.Combine(step, arrivals, results, own); }));
  return AddToTokens(routed, scratch.rows, backward.d_norm);
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
