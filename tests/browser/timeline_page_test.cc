// SPDX-License-Identifier: Apache-2.0
// The page of `takt trace -f html` in a browser: it asks for nothing, zooms, and says what is
// pointed at.
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "common/trace/page.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/browser/chromium.h"

namespace takt::trace {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Where things are on the canvas, by the page's own functions; events go to its own handlers.
constexpr char kTools[] = R"(
const {canvas, pen, view, x, timeAt, rows, data, perMs, end} = timeline;
const rowOf = (rank, kind) => rows.find(row => row.r === rank && row.kind === kind);
const send = (type, Kind, px, py, more = {}) => {
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new Kind(type, {clientX: box.left + 1 + px, clientY: box.top + 1 + py, bubbles: true, cancelable: true, ...more}));
};
const tipAt = (time, row) => {
  send('pointermove', PointerEvent, x(time), row.y + row.height / 2);
  const tip = byId('tip');
  return tip.style.display === 'block' ? tip.textContent : null;
};
const pixelAt = (time, row) => [...pen.getImageData(Math.round(x(time)), Math.round(row.y + row.height / 2 + 8), 1, 1).data.slice(0, 3)];
const range = () => byId('range').textContent;
)";

std::string MakePage(SyntheticTrace& synthetic) {
  return WritePage(MakeTimeline(synthetic.Get()).value());
}

json See(const std::string& page, const std::string& script) {
  return browser::RunInPage(page, kTools + script);
}

TEST(TimelinePage, IsOneFileThatAsksForNothing) {
  SKIP_WITHOUT_BROWSER();
  SyntheticTrace synthetic("1f1b", 4, 8);
  const std::string page = MakePage(synthetic);
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* request : {" src=", " href=", "@import", "url(http", "fetch(", "XMLHttp"}) {
    EXPECT_THAT(page, Not(HasSubstr(request)));
  }
  const json seen = See(page,
                        "report({requests: performance.getEntriesByType('resource').length, "
                        "title: document.title, legend: byId('legend').textContent});");
  EXPECT_EQ(seen["requests"], 0);
  EXPECT_EQ(seen["title"], "job synthetic, steps 1 to 2");
  EXPECT_THAT(seen["legend"].get<std::string>(), HasSubstr("B backward (I and W)"));
  EXPECT_THAT(seen["legend"].get<std::string>(), HasSubstr("idle, peer: another rank"));
}

TEST(TimelinePage, SaysWhatIsPointedAt) {
  SKIP_WITHOUT_BROWSER();
  SyntheticTrace synthetic("naive", 2, 1, {.message = 0.003});
  const Timeline timeline = MakeTimeline(synthetic.Get()).value();
  const json seen = See(WritePage(timeline), R"(
const begin = data.steps[1][1];
const at = (row, time) => [tipAt(begin + time * perMs, row), pixelAt(begin + time * perMs, row)];
report({forward: at(rowOf(0, 'compute'), 6), wait: at(rowOf(1, 'compute'), 5),
        link: at(rowOf(1, 'compute'), 12), predicted: at(rowOf(0, 'predicted'), 5),
        nothing: (send('pointermove', PointerEvent, 20, 5), byId('tip').style.display)});
)");
  ASSERT_TRUE(seen.is_object());
  const auto text = [&](const char* what) { return seen[what][0].get<std::string>(); };
  EXPECT_THAT(text("forward"), HasSubstr("0F0 on rank 0, step 2, measured\n"));
  EXPECT_THAT(text("forward"), HasSubstr("(10.000 ms)"));
  EXPECT_THAT(text("wait"), HasSubstr("idle before 1F0, rank 1, step 2\n"));
  EXPECT_THAT(text("wait"), HasSubstr("peer 0: another rank had not come so far"));
  EXPECT_THAT(text("link"), HasSubstr("link 0: a message was on its way"));
  EXPECT_THAT(text("predicted"), HasSubstr("0F0 on rank 0, step 2, predicted\n"));
  EXPECT_EQ(seen["nothing"], "none");
  EXPECT_EQ(seen["forward"][1], json({122, 176, 236}));  // drawn in the colour of F
}

TEST(TimelinePage, DrawsEachHalfOfAPairInTheShadeOfItsChunk) {
  SKIP_WITHOUT_BROWSER();
  SyntheticTrace synthetic("dualpipe-v", 2, 4);
  const json seen = See(MakePage(synthetic), R"(
const row = rowOf(0, 'compute');
const lower = {};
for (let time = data.steps[1][1]; time < end; time += perMs) {
  const found = /^\((0F|3F)\d+;/.exec(tipAt(time, row) || '');
  if (found && !lower[found[1]]) lower[found[1]] = pixelAt(time, row);
}
report(lower);
)");
  // Rank 0 has stages 0 and 3. The lower half is B, of the other one than F.
  EXPECT_EQ(seen["0F"], json({107, 163, 117}));
  EXPECT_EQ(seen["3F"], json({201, 232, 206}));
}

TEST(TimelinePage, ZoomsAndMoves) {
  SKIP_WITHOUT_BROWSER();
  SyntheticTrace synthetic("zb-v", 4, 8);
  const json seen = See(MakePage(synthetic), R"(
const seen = {all: {...view}};
const time = end / 3, px = x(time);
send('wheel', WheelEvent, px, 40, {deltaY: -1000});
seen.zoomed = {...view, under: timeAt(px) - time};
send('pointerdown', PointerEvent, 500, 40);
send('pointermove', PointerEvent, 400, 40);
dispatchEvent(new PointerEvent('pointerup'));
seen.dragged = {...view};
dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}));
seen.moved = {...view};
byId('step').value = '1';
byId('step').dispatchEvent(new Event('change'));
seen.step = {...view, is: data.steps[1]};
for (let i = 0; i < 80; ++i) byId('in').click();
seen.closest = {...view};
byId('fit').click();
seen.back = {...view};
seen.text = range();
for (const id of ['predicted', 'messages', 'lanes']) byId(id).click();
seen.rows = rows.filter(row => row.visible).map(row => row.kind);
report(seen);
)");
  ASSERT_TRUE(seen.is_object());
  const auto length = [&](const char* what) {
    return seen[what]["to"].get<double>() - seen[what]["from"].get<double>();
  };
  EXPECT_NEAR(length("zoomed"), length("all") * std::exp(-1.5), 1e-6 * length("all"));
  EXPECT_NEAR(seen["zoomed"]["under"], 0, 0.002 * length("all"));
  EXPECT_GT(seen["dragged"]["from"], seen["zoomed"]["from"]);
  EXPECT_NEAR(seen["dragged"]["from"].get<double>() - seen["moved"]["from"].get<double>(),
              length("zoomed") / 4, 1e-6 * length("all"));
  EXPECT_EQ(seen["step"]["from"], seen["step"]["is"][1]);
  EXPECT_EQ(seen["step"]["to"], seen["step"]["is"][2]);
  EXPECT_LT(length("closest"), 1e-4 * length("all"));
  EXPECT_EQ(seen["back"], seen["all"]);
  EXPECT_THAT(seen["text"].get<std::string>(), HasSubstr(" ms to "));
  const std::vector<std::string> kinds = seen["rows"];
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "predicted"), 0);
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "compute"), 4);
  EXPECT_GT(std::count(kinds.begin(), kinds.end(), "lane"), 4 * 4);
}

TEST(TimelinePage, OpensAHundredStepsOfSixteenRanks) {
  SKIP_WITHOUT_BROWSER();
  SyntheticTrace synthetic("1f1b", 16, 32, {.num_steps = 100});
  const std::string page = MakePage(synthetic);
  EXPECT_LT(page.size(), 15u << 20);
  std::printf("100 steps, 16 ranks, 32 microbatches: %.1f MB\n",
              1e-6 * static_cast<double>(page.size()));
  const json seen = See(page,
                        "const items = rows.reduce((sum, row) => sum + row.items.length, 0);\n"
                        "const text = range();\nbyId('step').value = '50';\n"
                        "byId('step').dispatchEvent(new Event('change'));\n"
                        "report({items, text, tip: tipAt(data.steps[50][1] + 5 * perMs, "
                        "rowOf(0, 'compute'))});");
  ASSERT_TRUE(seen.is_object());
  EXPECT_GT(seen["items"], 500'000);
  EXPECT_THAT(seen["text"].get<std::string>(), HasSubstr("zoom in to see messages"));
  EXPECT_THAT(seen["tip"].get<std::string>(), HasSubstr("0F0 on rank 0, step 51"));
}

TEST(TimelinePage, NamesOfJobsAreTextAndNothingElse) {
  SKIP_WITHOUT_BROWSER();
  SyntheticTrace synthetic("naive", 1, 1);
  synthetic.Get().job = "</script><script>document.title='gone'</script>&\"\xff";
  const json seen = See(MakePage(synthetic), "report(byId('title').textContent);");
  EXPECT_THAT(seen.get<std::string>(), HasSubstr("</script><script>document.title='gone'"));
}

// For whoever wants to look: TAKT_TEST_PAGE=/tmp/page.html browser_test --gtest_filter=*Look*
TEST(TimelinePage, IsThereToLookAt) {
  const char* const path = std::getenv("TAKT_TEST_PAGE");
  if (path == nullptr) GTEST_SKIP() << "TAKT_TEST_PAGE is not set";
  SyntheticTrace synthetic("interleaved-1f1b", 4, 8, {.message = 0.002, .load = 0.004});
  for (const program::Op op : {program::Op::kForward, program::Op::kBackward}) {
    synthetic.Slow(2, op, 1.3);
  }
  std::ofstream(path) << MakePage(synthetic);
}

}  // namespace
}  // namespace takt::trace
