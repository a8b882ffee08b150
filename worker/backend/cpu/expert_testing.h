// SPDX-License-Identifier: Apache-2.0
// Makes rows of experts for tests of their ops.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {

struct MixtureSizes {
  std::int64_t tokens, context, experts, chosen;
};
inline constexpr MixtureSizes kMixtures[] = {{1, 1, 1, 1},    {6, 3, 4, 1},      {12, 4, 5, 2},
                                             {130, 65, 7, 7}, {300, 100, 16, 3}, {400, 100, 2, 1}};

// Holds what RouteTokens writes for random logits. The logits of the last expert are so low that a
// token chooses it only if it must.
struct Routing {
  Routing(Backend& backend, const MixtureSizes& of, bool normalised = true, bool sigmoid = false)
      : sizes(of),
        bias(sigmoid ? Random(sizes.experts, 8) : Floats()),
        logits(Random(sizes.tokens * sizes.experts, 1)),
        choices(static_cast<std::size_t>(sizes.tokens * sizes.chosen)),
        weights(Unset(sizes.tokens * sizes.chosen)),
        offsets(static_cast<std::size_t>(sizes.experts + 1), -1),
        pairs(choices.size(), -1) {
    for (std::int64_t t = 0; t < sizes.tokens; ++t) logits[(t + 1) * sizes.experts - 1] -= 100;
    EXPECT_EQ(backend
                  .Run(RouteTokens{.rows = {.offsets = offsets.data(),
                                            .pairs = pairs.data(),
                                            .tokens = sizes.tokens,
                                            .experts = sizes.experts,
                                            .chosen = sizes.chosen},
                                   .logits = logits.data(),
                                   .choices = choices.data(),
                                   .weights = weights.data(),
                                   .bias = sigmoid ? bias.data() : nullptr,
                                   .normalised = normalised,
                                   .sigmoid = sigmoid})
                  .message(),
              "");
  }

  ExpertRows Rows() const {
    return {.offsets = offsets.data(),
            .pairs = pairs.data(),
            .tokens = sizes.tokens,
            .experts = sizes.experts,
            .chosen = sizes.chosen};
  }
  std::int64_t count() const { return sizes.tokens * sizes.chosen; }
  std::int64_t ExpertOf(std::int64_t row) const { return choices[pairs[row]]; }
  std::int64_t TokenOf(std::int64_t row) const { return pairs[row] / sizes.chosen; }

  const MixtureSizes sizes;
  const Floats bias;  // empty without sigmoids
  Floats logits;
  std::vector<std::int32_t> choices;
  Floats weights;
  std::vector<std::int32_t> offsets, pairs;
};

}  // namespace takt::backend::testing
