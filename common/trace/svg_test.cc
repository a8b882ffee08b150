// SPDX-License-Identifier: Apache-2.0
#include "common/trace/svg.h"

#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"

namespace takt::trace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string Drawn(SyntheticTrace& synthetic) {
  return RenderSvg(MakeTimeline(synthetic.Get()).value()).value();
}

TEST(TimelineSvg, DrawsWorkWaitsMessagesAndPredictions) {
  SyntheticTrace synthetic("1f1b", 2, 3);
  const std::string svg = Drawn(synthetic);
  EXPECT_EQ(Count(svg, "<svg "), 1);
  EXPECT_EQ(Count(svg, "0F1 of step 2, "), 1);
  EXPECT_EQ(Count(svg, "<title>0F1, predicted</title>"), 2);
  EXPECT_EQ(Count(svg, "class=\"m\""), 2 * 6);
  EXPECT_THAT(svg, HasSubstr("<title>idle before 1F0: peer 0, "));
  EXPECT_THAT(svg, HasSubstr(">idle: link<"));
  EXPECT_THAT(svg, Not(HasSubstr(">idle: data<")));
  EXPECT_THAT(svg, HasSubstr(">step 2<"));
}

TEST(TimelineSvg, ShowsBothHalvesOfAPair) {
  SyntheticTrace synthetic("dualpipe-v", 2, 4);
  const std::string svg = Drawn(synthetic);
  EXPECT_THAT(svg, HasSubstr("B backward (I and W)"));
  EXPECT_GT(Count(svg, " of step 2, "), 4 * 4 + 2);
}

TEST(TimelineSvg, EscapesNames) {
  SyntheticTrace synthetic("naive", 1, 1);
  synthetic.Get().job = "a<b>&c";
  EXPECT_THAT(Drawn(synthetic), HasSubstr("job a&lt;b&gt;&amp;c"));
}

TEST(TimelineSvg, RefusesWhatNoViewerWouldLike) {
  SyntheticTrace synthetic("1f1b", 8, 32, {.num_steps = 40});
  const auto svg = RenderSvg(MakeTimeline(synthetic.Get()).value());
  EXPECT_EQ(svg.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(svg.status().message()), HasSubstr("40 steps of 8 ranks"));
}

}  // namespace
}  // namespace takt::trace
