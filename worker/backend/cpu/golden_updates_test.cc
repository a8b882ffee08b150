// SPDX-License-Identifier: Apache-2.0
// Compares updates of parameters with those of PyTorch in double, which
// tests/golden/optimizers/make.py has computed.
#include <fstream>
#include <span>
#include <string>

#include "nlohmann/json.hpp"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

class GoldenUpdatesTest : public OpTest {};

// Returns the update of one step by the optimizer of a case.
Op UpdateOf(const nlohmann::json& each, std::span<const UpdatedTensor> tensors, std::int64_t step) {
  const nlohmann::json& options = each["options"];
  return AdamwUpdate{.tensors = tensors,
                     .step = step,
                     .learning_rate = options["learning_rate"],
                     .beta1 = options["beta1"],
                     .beta2 = options["beta2"],
                     .epsilon = options["epsilon"]};
}

TEST_P(GoldenUpdatesTest, AreThoseOfPyTorch) {
  std::ifstream in(TAKT_SOURCE_DIR "/tests/golden/optimizers/updates.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  int compared = 0;
  for (const nlohmann::json& each : golden["cases"]) {
    if (each["optimizer"] != "adamw") continue;
    ++compared;
    const std::size_t num_tensors = each["groups"].size(), num_steps = each["after"].size();
    std::vector<Floats> parameters, m, v;
    for (const nlohmann::json& initial : each["initial"]) {
      parameters.push_back(initial.get<Floats>());
      m.emplace_back(initial.size(), 0.0F);
      v.emplace_back(initial.size(), 0.0F);
    }
    for (std::size_t step = 0; step < num_steps; ++step) {
      std::vector<Floats> gradients;
      std::vector<UpdatedTensor> tensors;
      for (const nlohmann::json& gradient : each["gradients"][step])
        gradients.push_back(gradient.get<Floats>());
      for (std::size_t t = 0; t < num_tensors; ++t) {
        const nlohmann::json& group = each["groups"][t];
        const double decay = each["options"]["weight_decay"];
        tensors.push_back({.parameter = parameters[t].data(),
                           .gradient = gradients[t].data(),
                           .m = m[t].data(),
                           .v = v[t].data(),
                           .count = static_cast<std::int64_t>(parameters[t].size()),
                           .learning_rate_scale = group.value("learning_rate_scale", 1.0),
                           .weight_decay = group.value("weight_decay", decay)});
      }
      Run(UpdateOf(each, tensors, static_cast<std::int64_t>(step) + 1));
      for (std::size_t t = 0; t < num_tensors; ++t) {
        const auto expected = each["after"][step][t].get<Doubles>();
        // A parameter is rounded in each step, and updates are far below 1.
        const auto allowed = [&](std::size_t i) {
          return static_cast<double>(step + 1) * kEpsilon * (std::abs(expected[i]) + 1);
        };
        ExpectNear(parameters[t], expected, allowed,
                   each["options"].dump() + each["groups"][t].dump());
      }
    }
  }
  EXPECT_EQ(compared, 2);
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenUpdatesTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
