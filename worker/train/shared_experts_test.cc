// SPDX-License-Identifier: Apache-2.0
// Compares shared experts, bit by bit, with ops over all experts on the tokens' own rank, which are
// those of Experts.
#include "worker/train/shared_experts.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/group_testing.h"

namespace takt::train {
namespace {

using Floats = std::vector<float>;

constexpr std::int64_t kExperts = 4, kChosen = 2, kHidden = 19, kInner = 23;
constexpr std::int64_t kMatrix = kHidden * kInner;

Floats Random(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 2001) / 1000 - 1;
  return values;
}

// Returns the matrices of all experts: gate, up and down of each.
const Floats& Weights() {
  static const auto* const weights = new Floats(Random(kExperts * 3 * kMatrix, 99));
  return *weights;
}
const float* MatrixOf(std::int64_t expert, std::int64_t matrix) {
  return Weights().data() + (expert * 3 + matrix) * kMatrix;
}

// Has a microbatch of one rank. Ranks have different numbers of tokens, and loads are uneven:
// expert 1 has rows from odd ranks alone.
class Microbatch {
 public:
  Microbatch(int rank, unsigned seed)
      : tokens_(270 + 30 * rank),
        norm_(Random(tokens_ * kHidden, seed)),
        d_output_(Random(tokens_ * kHidden, seed + 1)),
        logits_(Random(tokens_ * kExperts, seed + 2)) {
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens_); ++t) {
      logits_[t * kExperts] += 1;
      if (rank % 2 == 0) logits_[t * kExperts + 1] = -9;
    }
  }

  absl::Status Route(backend::Backend& backend) {
    return backend.Run(backend::RouteTokens{.rows = {.offsets = offsets_.data(),
                                                     .pairs = pairs_.data(),
                                                     .tokens = tokens_,
                                                     .experts = kExperts,
                                                     .chosen = kChosen},
                                            .logits = logits_.data(),
                                            .choices = choices_.data(),
                                            .weights = weights_.data(),
                                            .normalised = true});
  }
  const Floats& norm() const { return norm_; }
  const Floats& d_output() const { return d_output_; }
  SharedExperts::Routed routed() const {
    return {.rows = {.offsets = offsets_.data(),
                     .pairs = pairs_.data(),
                     .tokens = tokens_,
                     .experts = kExperts,
                     .chosen = kChosen},
            .weights = weights_.data()};
  }

 private:
  std::size_t NumPairs() const { return static_cast<std::size_t>(tokens_ * kChosen); }

  const std::int64_t tokens_;
  const Floats norm_, d_output_;
  Floats logits_;
  std::vector<std::int32_t> offsets_ = std::vector<std::int32_t>(kExperts + 1);
  std::vector<std::int32_t> pairs_ = std::vector<std::int32_t>(NumPairs());
  std::vector<std::int32_t> choices_ = pairs_;
  Floats weights_ = Floats(NumPairs());
};

struct Results {
  Floats output, d_weights, d_norm;
  Floats gradients = Floats(kExperts * 3 * kMatrix);  // by expert: gate, up, down
};

// Computes a microbatch as one rank with all experts does.
absl::Status ComputeAtHome(backend::Backend& backend, const Microbatch& microbatch, bool accumulate,
                           Results& results) {
  const SharedExperts::Routed routed = microbatch.routed();
  const backend::ExpertRows& rows = routed.rows;
  const auto pairs = static_cast<std::size_t>(rows.count());
  Floats gate(pairs * kInner), up = gate, product = gate, d_product = gate;
  results.output = results.d_norm = Floats(microbatch.norm().size());
  results.d_weights = Floats(pairs);
  const auto multiply = [&](std::int64_t matrix, const float* a, float* c, bool from_hidden,
                            bool backward, bool to_tokens) -> absl::Status {
    std::vector<backend::ExpertMatrix> matrices;
    for (std::int64_t e = 0; e < kExperts; ++e) matrices.push_back({.b = MatrixOf(e, matrix)});
    return backend.Run(backend::ExpertMatmul{.rows = rows,
                                             .matrices = matrices,
                                             .a = a,
                                             .c = c,
                                             .b_transposed = !backward,
                                             .to_tokens = to_tokens,
                                             .n = from_hidden ? kInner : kHidden,
                                             .k = from_hidden ? kHidden : kInner});
  };
  RETURN_IF_ERROR(multiply(0, microbatch.norm().data(), gate.data(), true, false, false));
  RETURN_IF_ERROR(multiply(1, microbatch.norm().data(), up.data(), true, false, false));
  RETURN_IF_ERROR(backend.Run(backend::ExpertSwigluForward{.rows = rows,
                                                           .gate = gate.data(),
                                                           .up = up.data(),
                                                           .weights = routed.weights,
                                                           .output = product.data(),
                                                           .columns = kInner}));
  RETURN_IF_ERROR(multiply(2, product.data(), results.output.data(), false, false, true));
  RETURN_IF_ERROR(multiply(2, microbatch.d_output().data(), d_product.data(), true, true, false));
  RETURN_IF_ERROR(backend.Run(backend::ExpertSwigluBackward{.rows = rows,
                                                            .gate = gate.data(),
                                                            .up = up.data(),
                                                            .weights = routed.weights,
                                                            .d_output = d_product.data(),
                                                            .d_gate = gate.data(),
                                                            .d_up = up.data(),
                                                            .d_weights = results.d_weights.data(),
                                                            .columns = kInner}));
  RETURN_IF_ERROR(multiply(0, gate.data(), results.d_norm.data(), false, true, true));
  RETURN_IF_ERROR(multiply(1, up.data(), results.d_norm.data(), false, true, true));
  for (std::int64_t matrix = 0; matrix < 3; ++matrix) {
    const bool down = matrix == 2;
    const Floats& of_inner = down ? product : matrix == 0 ? gate : up;
    const float* const of_tokens = (down ? microbatch.d_output() : microbatch.norm()).data();
    std::vector<backend::ExpertGradient> gradients;
    for (std::int64_t e = 0; e < kExperts; ++e)
      gradients.push_back({.c = results.gradients.data() + (e * 3 + matrix) * kMatrix});
    RETURN_IF_ERROR(
        backend.Run(backend::ExpertMatmulTransposed{.rows = rows,
                                                    .gradients = gradients,
                                                    .a = down ? of_tokens : of_inner.data(),
                                                    .b = down ? of_inner.data() : of_tokens,
                                                    .a_by_token = down,
                                                    .accumulate = accumulate,
                                                    .m = down ? kHidden : kInner,
                                                    .n = down ? kInner : kHidden}));
  }
  return absl::OkStatus();
}

// The memory of a microbatch of so many pairs, to which so many rows come.
class Memory {
 public:
  Memory(std::int64_t pairs, std::int64_t arrived)
      : input_(Of(arrived * kHidden)),
        weights_(Of(arrived)),
        gate_(Of(arrived * kInner)),
        up_(gate_),
        product_(gate_),
        d_output_(input_),
        rows_(Of(pairs * kHidden)),
        pairs_(Of(pairs)),
        results_(input_),
        d_weights_(weights_),
        d_product_(gate_) {}

  SharedExperts::Stash stash() {
    return {.input = input_.data(),
            .weights = weights_.data(),
            .gate = gate_.data(),
            .up = up_.data(),
            .product = product_.data(),
            .d_output = d_output_.data()};
  }
  SharedExperts::Scratch scratch() {
    return {.rows = rows_.data(),
            .pairs = pairs_.data(),
            .results = results_.data(),
            .d_weights = d_weights_.data(),
            .d_product = d_product_.data()};
  }

 private:
  static Floats Of(std::int64_t count) { return Floats(static_cast<std::size_t>(count), -7); }

  Floats input_, weights_, gate_, up_, product_, d_output_;
  Floats rows_, pairs_, results_, d_weights_, d_product_;
};

// Computes two microbatches of the rank, and compares them with those at home. home: of each rank,
// after both.
absl::Status CompareOnRank(transport::Collective& group, const std::vector<Results>& home) {
  ASSIGN_OR_RETURN(const auto backend, backend::CreateCpuBackend({}));
  const std::int64_t here = kExperts / group.size(), first = group.index() * here;
  engine::PartCursor cursor;
  ExpertMeetings meetings(ExpertMeetings::Options{
      .group = &group, .cursor = &cursor, .share = {.size = group.size(), .index = group.index()}});
  SharedExperts::Options options{.meetings = &meetings,
                                 .backend = backend.get(),
                                 .experts = kExperts,
                                 .hidden = kHidden,
                                 .inner = kInner,
                                 .here = {}};
  for (std::int64_t e = first; e < first + here; ++e) {
    options.here.push_back({.gate = {.weight = MatrixOf(e, 0)},
                            .up = {.weight = MatrixOf(e, 1)},
                            .down = {.weight = MatrixOf(e, 2)}});
  }
  SharedExperts experts(options);
  Floats memory(static_cast<std::size_t>(group.size() * here * 3 * kMatrix), -5);
  std::vector<SharedExperts::Gradients> gradients;
  for (std::int64_t i = 0; i < group.size() * here; ++i) {
    float* const of_expert = memory.data() + i * 3 * kMatrix;
    gradients.push_back({of_expert, of_expert + kMatrix, of_expert + 2 * kMatrix});
  }
  Results results;
  for (const bool second : {false, true}) {
    Microbatch microbatch(group.index(), second ? 20 : 10);
    RETURN_IF_ERROR(microbatch.Route(*backend));
    const SharedExperts::Routed routed = microbatch.routed();
    results.output = results.d_norm = Floats(microbatch.norm().size());
    results.d_weights = Floats(static_cast<std::size_t>(routed.rows.count()));
    std::vector<std::int32_t> counts(static_cast<std::size_t>(group.size() * kExperts));
    ASSIGN_OR_RETURN(const ExpertArrivals arrivals, experts.Announce(routed, counts));
    Memory pass(routed.rows.count(), arrivals.num_received());
    RETURN_IF_ERROR(
        experts.Forward(routed, arrivals, microbatch.norm().data(), pass.stash(), pass.scratch()));
    RETURN_IF_ERROR(
        experts.Output(routed, arrivals, pass.stash(), pass.scratch(), results.output.data()));
    // The router's part of the gradient is 0.
    RETURN_IF_ERROR(experts.InputGrad(routed, arrivals,
                                      {.d_output = microbatch.d_output().data(),
                                       .d_weights = results.d_weights.data(),
                                       .d_norm = results.d_norm.data()},
                                      pass.stash(), pass.scratch(),
                                      [] { return absl::OkStatus(); }));
    RETURN_IF_ERROR(experts.WeightGrad(arrivals, pass.stash(), gradients, second));
  }
  const Results& expected = home[static_cast<std::size_t>(group.index())];
  EXPECT_EQ(results.output, expected.output);
  EXPECT_EQ(results.d_weights, expected.d_weights);
  EXPECT_EQ(results.d_norm, expected.d_norm);
  for (int source = 0; source < group.size(); ++source) {
    const auto mine = memory.begin() + source * here * 3 * kMatrix;
    const auto whole = home[static_cast<std::size_t>(source)].gradients.begin();
    EXPECT_TRUE(std::equal(mine, mine + here * 3 * kMatrix, whole + first * 3 * kMatrix))
        << "gradients by the rows of rank " << source;
  }
  return absl::OkStatus();
}

TEST(SharedExperts, HaveTheBitsOfExpertsOnTheTokensOwnRank) {
  const auto backend = backend::CreateCpuBackend({}).value();
  std::vector<Results> home(4);
  for (int rank = 0; rank < 4; ++rank) {
    for (const bool second : {false, true}) {
      Microbatch microbatch(rank, second ? 20 : 10);
      ASSERT_TRUE(microbatch.Route(*backend).ok());
      ASSERT_TRUE(
          ComputeAtHome(*backend, microbatch, second, home[static_cast<std::size_t>(rank)]).ok());
    }
  }
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    ForAllRanks(ranks, [&](transport::Collective& group) { return CompareOnRank(group, home); });
  }
}

}  // namespace
}  // namespace takt::train
