// SPDX-License-Identifier: Apache-2.0
// The page of `takt schedule show -f html` in a browser: what its controls show is what the
// simulator says.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/schedule/page.h"
#include "cli/schedule/simulated_schedule.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/browser/chromium.h"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Turns the page's own controls to each view and writes down what is there then.
constexpr char kProbe[] = R"(
const seen = [];
for (const view of VIEWS) {
  for (const key of ['family', 'P', 'M', 'V', 'costs']) {
    if (!(key in view)) continue;
    const select = document.getElementById(key);
    select.value = view[key];
    select.dispatchEvent(new Event('change'));
  }
  const figures = {};
  for (const card of document.querySelectorAll('#figures div')) {
    figures[card.dataset.name] = card.querySelector('b').textContent;
  }
  seen.push({figures, address: location.hash, refusal: document.getElementById('refusal')?.textContent,
             rows: document.querySelectorAll('#families tr').length,
             chosen: document.querySelector('#families tr.chosen')?.textContent,
             actions: [...document.querySelectorAll('#picture rect.a title')].map(title => title.textContent)});
}
report(seen);
)";

std::string Number(double value) { return absl::StrFormat("%.10g", std::round(value * 1e4) / 1e4); }

SimulatedSchedule Simulated(const schedule::Schedule& schedule, const StepCosts& costs = {}) {
  return SimulateSchedule(schedule, costs, {}).value();
}

schedule::Schedule Generated(std::string_view family, int ranks, int microbatches,
                             std::optional<int> chunks = std::nullopt,
                             const cost::Costs& costs = {}) {
  return schedule::Generate(family, {.num_ranks = ranks,
                                     .num_microbatches = microbatches,
                                     .num_chunks = chunks,
                                     .costs = costs})
      .value();
}

// As the tooltips of the picture put it.
std::vector<std::string> Actions(const SimulatedSchedule& simulated) {
  std::vector<std::string> actions;
  for (std::size_t rank = 0; rank < simulated.timeline.ranks.size(); ++rank) {
    for (const schedule::TimedAction& timed : simulated.timeline.ranks[rank]) {
      actions.push_back(absl::StrCat(timed.action.ToString(), " on rank ", rank, ": ",
                                     Number(timed.start), " to ", Number(timed.end)));
    }
  }
  return actions;
}

class SchedulePage : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const schedule::Schedule asked = Generated("1f1b", 3, 5);
    page_ = new std::string(RenderPage(asked, Simulated(asked)).value());
  }
  static void TearDownTestSuite() { delete page_; }

  // What the page shows at each of `views`, in order.
  json See(const json& views) {
    return browser::RunInPage(*page_, absl::StrReplaceAll(kProbe, {{"VIEWS", views.dump()}}));
  }

  static std::string* page_;
};
std::string* SchedulePage::page_ = nullptr;

TEST_F(SchedulePage, IsOneFileOfModestSizeThatAsksForNothing) {
  EXPECT_LT(page_->size(), 3u << 20);
  EXPECT_THAT(*page_, HasSubstr("default-src 'none'"));
  for (const char* request : {" src=", " href=", "@import", "url(http", "fetch(", "XMLHttp"}) {
    EXPECT_THAT(*page_, Not(HasSubstr(request)));
  }
}

TEST_F(SchedulePage, OpensWithTheScheduleThatWasAskedFor) {
  SKIP_WITHOUT_BROWSER();
  const json seen = See(json::array({json::object()}));
  ASSERT_EQ(seen.size(), 1u);
  const SimulatedSchedule expected = Simulated(Generated("1f1b", 3, 5));
  EXPECT_EQ(seen[0]["figures"]["makespan"], Number(expected.report.makespan));
  EXPECT_EQ(seen[0]["actions"].get<std::vector<std::string>>(), Actions(expected));
}

TEST_F(SchedulePage, ControlsShowEveryFamilyAsTheSimulatorHasIt) {
  SKIP_WITHOUT_BROWSER();
  StepCosts skewed;
  skewed.time = {.forward = {1},
                 .input_grad = {1.1},
                 .weight_grad = {0.7},
                 .backward = {1.8},
                 .link = {.latency = 0.1}};
  json views = json::array();
  std::vector<absl::StatusOr<schedule::Schedule>> schedules;
  for (const schedule::Family& family : schedule::Families()) {
    for (const auto& [ranks, microbatches] : {std::pair(4, 8), std::pair(2, 2)}) {
      json view = {{"family", family.name}, {"P", ranks}, {"M", microbatches}, {"costs", 1}};
      std::optional<int> chunks;
      if (family.uses_chunks) view["V"] = *(chunks = 4);
      views.push_back(view);
      schedules.push_back(schedule::Generate(family.name, {.num_ranks = ranks,
                                                           .num_microbatches = microbatches,
                                                           .num_chunks = chunks,
                                                           .costs = skewed.time}));
    }
  }
  const json seen = See(views);
  ASSERT_EQ(seen.size(), views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    SCOPED_TRACE(views[i].dump());
    EXPECT_THAT(seen[i]["address"].get<std::string>(),
                HasSubstr("family=" + views[i]["family"].get<std::string>()));
    if (!schedules[i].ok()) {
      EXPECT_THAT(seen[i].value("refusal", ""), HasSubstr("cannot run here"));
      continue;
    }
    const SimulatedSchedule expected = Simulated(*schedules[i], skewed);
    const json& figures = seen[i]["figures"];
    if (schedules[i]->updates == schedule::Updates::kFlush) {
      EXPECT_EQ(figures["makespan"], Number(expected.report.makespan));
      EXPECT_EQ(figures["bubble"],
                absl::StrFormat("%.2f %%", 100 * expected.report.bubble_fraction));
    } else {
      EXPECT_FALSE(figures.contains("makespan"));
      EXPECT_EQ(figures["a step in a row of them"], Number(expected.report.step_time));
    }
    EXPECT_EQ(figures["peak in flight, chunks"], absl::StrCat(expected.report.peak_in_flight()));
    EXPECT_EQ(figures["messages"], absl::StrCat(expected.report.num_messages));
    EXPECT_THAT(seen[i]["chosen"].get<std::string>(),
                HasSubstr(views[i]["family"].get<std::string>()));
    EXPECT_GE(seen[i]["rows"], schedule::Families().size());
    EXPECT_EQ(seen[i]["actions"].get<std::vector<std::string>>(), Actions(expected));
  }
}

}  // namespace
}  // namespace takt::cli
