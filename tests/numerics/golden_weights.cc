// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/numerics/golden.h"

namespace takt::numerics {
namespace {

std::vector<float> Minus(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return difference;
}

void Append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

std::vector<float> Pick(const GoldenCase& golden, const std::string& tensor,
                        const std::vector<float>& values, bool zero_gradients) {
  std::vector<float> picked;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool zero = std::ranges::any_of(golden.zero_gradients, [&](const auto& range) {
      return range.tensor == tensor && i >= range.begin && i < range.end;
    });
    if (zero == zero_gradients) picked.push_back(values[i]);
  }
  return picked;
}

void CompareGradients(const GoldenCase& golden, const Tensors& gradients, const Tolerances& allowed,
                      Comparison& compare) {
  std::size_t compared = 0;
  for (const auto& [name, want] : golden.expected) {
    if (!name.starts_with("grad.")) continue;
    const std::string parameter = name.substr(5);
    ASSERT_TRUE(gradients.contains(parameter)) << parameter;
    const std::vector<float>& gradient = gradients.at(parameter);
    ASSERT_EQ(gradient.size(), want.size()) << parameter;
    compare.RelativeL2("gradients, rel l2", parameter, Pick(golden, parameter, gradient, false),
                       Pick(golden, parameter, want, false), allowed.gradients_l2);
    const std::vector<float> zeros = Pick(golden, parameter, gradient, true);
    compare.MaxAbsolute("zero gradients, max", parameter, zeros, std::vector<float>(zeros.size()),
                        allowed.zero_gradients_abs);
    ++compared;
  }
  EXPECT_EQ(compared, golden.initial_weights.size());
}

void CompareFinalWeights(const GoldenCase& golden, const Tensors& weights,
                         const Tolerances& allowed, Comparison& compare) {
  std::vector<float> all_got, all_want;
  for (const auto& [name, want] : golden.final_weights) {
    ASSERT_TRUE(weights.contains(name)) << name;
    const std::vector<float>& got = weights.at(name);
    ASSERT_EQ(got.size(), want.size()) << name;
    compare.MaxAbsolute("final weights, max", name, Pick(golden, name, got, false),
                        Pick(golden, name, want, false), allowed.weights_abs);
    compare.MaxAbsolute("final weights at zero gradients, max", name, Pick(golden, name, got, true),
                        Pick(golden, name, want, true), allowed.weights_at_zero_gradients_abs);
    const std::vector<float>& initial = golden.initial_weights.at(name);
    const std::vector<float> update = Pick(golden, name, Minus(got, initial), false);
    const std::vector<float> want_update = Pick(golden, name, Minus(want, initial), false);
    // Slow rotary pairs leave the key bias next to no gradient.
    const bool key_bias = name.ends_with("k_proj.bias");
    compare.RelativeL2(key_bias ? "key bias updates, rel l2" : "weight updates, rel l2", name,
                       update, want_update,
                       key_bias ? allowed.key_bias_updates_l2 : allowed.updates_l2);
    Append(all_got, update);
    Append(all_want, want_update);
  }
  compare.RelativeL2("weight updates, rel l2 overall", "all", all_got, all_want,
                     allowed.updates_l2_overall);
}

void CompareSteps(const GoldenCase& golden, const RunResult& run, const Tolerances& allowed,
                  Comparison& compare) {
  ASSERT_LE(run.steps.size(), golden.steps.size());
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const std::string step = "step " + std::to_string(i + 1);
    compare.Absolute("loss", step, run.steps[i].loss, golden.steps[i].loss, allowed.loss_abs);
    compare.Absolute("grad_norm", step, run.steps[i].grad_norm / golden.steps[i].grad_norm, 1,
                     allowed.grad_norm_rel);
  }
}

void CompareFirstStep(const GoldenCase& golden, const RunResult& run, const std::string& title) {
  ASSERT_EQ(run.steps.size(), 1U);
  const Tolerances& allowed = TolerancesOf(config::Precision::kF32);
  Comparison compare(title);
  CompareSteps(golden, run, allowed, compare);
  EXPECT_EQ(run.steps[0].tokens, golden.steps[0].scored);
  CompareGradients(golden, run.gradients, allowed, compare);
}

void CompareTraining(const GoldenCase& golden, const RunResult& run, const std::string& title) {
  ASSERT_EQ(run.steps.size(), golden.steps.size());
  const Tolerances& allowed = TolerancesOf(config::Precision::kF32);
  Comparison compare(title);
  CompareSteps(golden, run, allowed, compare);
  CompareFinalWeights(golden, run.weights, allowed, compare);
}

}  // namespace takt::numerics
