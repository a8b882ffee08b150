// SPDX-License-Identifier: Apache-2.0
#include "worker/session/fp8_metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

using backend::Fp8Operand;
using ::testing::HasSubstr;

constexpr mesh::Coordinates kPlace{.pp = PpRank(1)};

TEST(Fp8Metrics, AddsWhatWasCountedSinceTheLastStep) {
  metrics::Registry registry;
  backend::Fp8Counters counters;
  counters.Add(Fp8Operand::kWeight, {.overflows = 9, .underflows = 9});  // of an earlier job
  Fp8Metrics metrics(registry, "gpt", kPlace, counters);
  counters.Add(Fp8Operand::kGradient, {.overflows = 1, .underflows = 20});
  metrics.Record();
  counters.Add(Fp8Operand::kGradient, {.overflows = 0, .underflows = 22});
  metrics.Record();
  metrics.Record();
  const std::string text = registry.Text();
  const std::string gradient = "{job=\"gpt\",operand=\"gradient\",pp_rank=\"1\"}";
  EXPECT_THAT(text, HasSubstr("takt_fp8_overflows_total" + gradient + " 1\n"));
  EXPECT_THAT(text, HasSubstr("takt_fp8_underflows_total" + gradient + " 42\n"));
  EXPECT_THAT(text, HasSubstr("operand=\"weight\",pp_rank=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("operand=\"activation\",pp_rank=\"1\"} 0\n"));
}

}  // namespace
}  // namespace takt::session
