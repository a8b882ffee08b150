// SPDX-License-Identifier: Apache-2.0
// Compares updates of parameters, losses and gradients of logits with those of PyTorch in double,
// which tests/golden/optimizers/make.py has computed.
#include <algorithm>
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
  if (each["optimizer"] == "lion") {
    return LionUpdate{.tensors = tensors,
                      .learning_rate = options["learning_rate"],
                      .beta1 = options["beta1"],
                      .beta2 = options["beta2"]};
  }
  if (each["optimizer"] == "sgd") {
    return SgdUpdate{.tensors = tensors,
                     .learning_rate = options["learning_rate"],
                     .momentum = options["momentum"],
                     .nesterov = options["nesterov"]};
  }
  return AdamwUpdate{.tensors = tensors,
                     .step = step,
                     .learning_rate = options["learning_rate"],
                     .beta1 = options["beta1"],
                     .beta2 = options["beta2"],
                     .epsilon = options["epsilon"]};
}

nlohmann::json CasesOf(const std::string& file) {
  std::ifstream in(TAKT_SOURCE_DIR "/tests/golden/optimizers/" + file);
  return nlohmann::json::parse(in).at("cases");
}

TEST_P(GoldenUpdatesTest, AreThoseOfPyTorch) {
  const nlohmann::json cases = CasesOf("updates.json");
  ASSERT_EQ(cases.size(), 8u);
  for (const nlohmann::json& each : cases) {
    const std::size_t num_tensors = each["groups"].size(), num_steps = each["after"].size();
    std::vector<Floats> parameters, m, v;
    for (const nlohmann::json& initial : each["initial"]) {
      parameters.push_back(initial.get<Floats>());
      m.emplace_back(initial.size(), 0.0F);
      v.emplace_back(initial.size(), 0.0F);
      // Without momentum there is no memory for it.
      if (each["options"].value("momentum", 1.0) == 0) m.back().clear();
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
}

class GoldenLossTest : public OpTest {};

TEST_P(GoldenLossTest, IsThatOfPyTorchHoweverTheColumnsAreCut) {
  const nlohmann::json cases = CasesOf("losses.json");
  ASSERT_EQ(cases.size(), 4u);
  for (const nlohmann::json& each : cases) {
    const auto targets = each["targets"].get<std::vector<std::int32_t>>();
    const auto rows = each["logits"].get<std::vector<Floats>>();
    const auto gradient = each["gradient"].get<std::vector<Doubles>>();
    const std::size_t vocab = rows[0].size();
    const double smoothing = each["label_smoothing"];
    const TargetShares shares = {
        .target = static_cast<float>(1 - smoothing),
        .each = static_cast<float>(smoothing / static_cast<double>(vocab))};
    for (const std::size_t block_columns : {std::size_t{7}, std::size_t{3}, std::size_t{1}}) {
      std::vector<Floats> blocks;
      Doubles expected;  // in the order of the blocks
      for (std::size_t first = 0; first < vocab; first += block_columns) {
        const std::size_t end = std::min(vocab, first + block_columns);
        Floats& block = blocks.emplace_back();
        for (std::size_t r = 0; r < rows.size(); ++r) {
          for (std::size_t i = first; i < end; ++i) {
            block.push_back(rows[r][i]);
            expected.push_back(gradient[r][i]);
          }
        }
      }
      std::vector<BlockedCrossEntropy<float>::Block> tensors;
      for (Floats& block : blocks) {
        tensors.push_back({.logits = block.data(),
                           .columns = static_cast<std::int64_t>(block.size() / rows.size())});
      }
      BlockedCrossEntropy<float> cross_entropy(*backend_, tensors, targets);
      const double loss = cross_entropy.Loss(each["scale"], shares, each["z_loss"]);
      // Logits are up to 10, and the loss is a sum over three rows.
      EXPECT_NEAR(loss, each["loss"].get<double>(), 100 * kEpsilon) << block_columns;
      cross_entropy.Gradient();
      Floats computed;
      for (const Floats& block : blocks)
        computed.insert(computed.end(), block.begin(), block.end());
      ExpectNear(computed, expected, 16 * kEpsilon, "gradient of logits");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GoldenLossTest, ::testing::ValuesIn(TestedBackends()));
INSTANTIATE_TEST_SUITE_P(Backends, GoldenUpdatesTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
