// SPDX-License-Identifier: Apache-2.0
// The page of `takt plan --html` in a browser: it asks for nothing, fits the window, and can be
// read in the light and in the dark.
#include <cstdlib>

#include "absl/strings/str_replace.h"
#include "cli/job/forecast_page.h"
#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/browser/chromium.h"

namespace takt::cli {
namespace {

using nlohmann::json;

std::string MakePage() {
  config::JobSpec job = config::SmallGpt2Job();
  job.global_batch = 128;
  job.microbatch = 1;
  job.parallelism.pipeline = 4;
  const plan::PlanOptions options{.max_workers = 4, .worker_memory_bytes = std::int64_t{128} << 20};
  return RenderForecastPage(job, options, plan::MakeForecasts(job, options, 5).value()).value();
}

// Runs a script in the page, which allows none itself.
json See(const std::string& script) {
  const std::string page =
      absl::StrReplaceAll(MakePage(), {{"default-src 'none'; ", "script-src 'unsafe-inline'; "}});
  return browser::RunInPage(page, script);
}

TEST(PlanPage, AsksForNothingAndKeepsNamesInView) {
  SKIP_WITHOUT_BROWSER();
  const json seen = See(R"(
const picture = document.querySelector('.picture'), names = picture.querySelector('.names');
const left = element => element.getBoundingClientRect().left;
picture.scrollLeft = 500;
report({requests: performance.getEntriesByType('resource').length,
        title: document.title,
        pictures: document.querySelectorAll('.picture').length,
        isWide: picture.scrollWidth > picture.clientWidth + 500,
        moved: picture.scrollLeft,
        names: left(names) - left(picture),
        fits: document.documentElement.scrollWidth <= innerWidth});
)");
  ASSERT_TRUE(seen.is_object());
  EXPECT_EQ(seen["requests"], 0);
  EXPECT_EQ(seen["title"], "Plan of job j");
  EXPECT_EQ(seen["pictures"], 5);
  EXPECT_EQ(seen["isWide"], true);
  EXPECT_EQ(seen["moved"], 500);
  EXPECT_EQ(seen["names"], 0);
  EXPECT_EQ(seen["fits"], true);
}

// The contrast is computed by the formula of WCAG 2.2.
TEST(PlanPage, HasContrastInTheLightAndInTheDark) {
  SKIP_WITHOUT_BROWSER();
  const json seen = See(R"(
const rules = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]);
const dark = rules.find(rule => rule.media && rule.media.mediaText.includes('dark'));
const light = rules.find(rule => rule.selectorText === ':root');
const luminance = style => name => {
  let hex = style.getPropertyValue(name).trim().slice(1);
  if (hex.length === 3) hex = [...hex].map(digit => digit + digit).join('');
  const linear = [0, 2, 4].map(at => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrasts = style => {
  const of = luminance(style), page = of('--page');
  const against = name => (Math.max(page, of(name)) + 0.05) / (Math.min(page, of(name)) + 0.05);
  return {text: Math.min(against('--ink'), against('--quiet')),
          shapes: Math.min(...['--base', '--stash', '--messages', '--limit'].map(against))};
};
report({light: contrasts(light.style), dark: contrasts(dark.cssRules[0].style)});
)");
  ASSERT_TRUE(seen.is_object());
  for (const char* scheme : {"light", "dark"}) {
    EXPECT_GE(seen[scheme]["text"], 4.5) << scheme;
    EXPECT_GE(seen[scheme]["shapes"], 3) << scheme;
  }
}

// For whoever wants to look: TAKT_TEST_PAGE=/tmp/page.html browser_test
// --gtest_filter=PlanPage*Look*
TEST(PlanPage, IsThereToLookAt) {
  const char* const path = std::getenv("TAKT_TEST_PAGE");
  if (path == nullptr) GTEST_SKIP() << "TAKT_TEST_PAGE is not set";
  std::ofstream(path) << MakePage();
}

}  // namespace
}  // namespace takt::cli
