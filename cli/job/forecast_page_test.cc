// SPDX-License-Identifier: Apache-2.0
#include "cli/job/forecast_page.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "cli/base/text.h"
#include "cli/job/forecast_picture.h"
#include "cli/job/forecast_text.h"
#include "common/base/status.h"
#include "common/config/testing/jobs.h"
#include "common/sim/simulate.h"
#include "gmock/gmock.h"

namespace takt::cli {
namespace {

using config::EmulatedJob;
using config::SmallGpt2Job;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

plan::Forecasts ForecastsOf(const config::JobSpec& job, const plan::PlanOptions& options,
                            int top = 5) {
  return plan::MakeForecasts(job, options, top).value();
}

plan::Forecasts ForecastsOf(const config::JobSpec& job) {
  return ForecastsOf(job, {.max_workers = 64});
}

std::string PageOf(const config::JobSpec& job, const plan::Forecasts& forecasts) {
  return RenderForecastPage(job, {.max_workers = 64}, forecasts).value();
}

std::size_t Count(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Boxes of actions are the only paths that have a fill of their own.
std::size_t CountBoxes(std::string_view page) { return Count(page, "<path fill="); }

// Returns the first tag that closes what is not open, or "" if every element is closed.
std::string WrongTag(std::string_view page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != page.npos; at = page.find('<', at + 1)) {
    const std::string_view tag = page.substr(at + 1, page.find('>', at) - at - 1);
    const bool closes = tag.starts_with('/');
    const std::string name(tag.substr(closes, tag.find_first_of(" \n/", closes) - closes));
    if (name.starts_with("!") || name == "meta" || tag.ends_with('/')) continue;
    if (!closes) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return std::string(tag);
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

TEST(ForecastPage, ShowsWhoHasWhichWords) {
  config::JobSpec job = SmallGpt2Job();
  job.model.vocab = 20000;
  job.parallelism = {.pipeline = 2, .schedule = "1f1b", .vocabulary = config::Vocabulary::kSpread};
  const plan::Forecasts forecasts = ForecastsOf(job);
  ASSERT_EQ(forecasts.candidates.size(), 1u);
  const std::string page = PageOf(job, forecasts);
  EXPECT_THAT(page, AllOf(HasSubstr(", vocabulary spread</h2>"), HasSubstr("Words of each rank"),
                          HasSubstr("S logits")));
  EXPECT_EQ(WrongTag(page), "");
}

TEST(ForecastPage, HasEveryCandidateWithItsReasonAndAPicture) {
  const config::JobSpec job = SmallGpt2Job();
  const plan::Forecasts forecasts = ForecastsOf(job, {.max_workers = 4}, 7);
  ASSERT_EQ(forecasts.candidates.size(), 7u);
  const std::string page = PageOf(job, forecasts);
  EXPECT_EQ(WrongTag(page), "");
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<th scope=\"row\">", i + 1, "</th>")));
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<li>", WhyOf(forecasts.candidates, i), "</li>")));
  }
  for (std::size_t i = 0; i < 5; ++i) {
    const plan::Plan& plan = forecasts.candidates[i].plan;
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<h2>", i + 1, ": ", plan.schedule.name, ", pipeline ",
                                             plan.mesh.pp_size, "</h2>")));
    EXPECT_THAT(page, HasSubstr(FormatSeconds(plan.predicted_step_seconds)));
  }
  EXPECT_EQ(Count(page, "class=\"picture\""), 5u);
  EXPECT_EQ(Count(page, "role=\"img\""), 5u);
  EXPECT_THAT(page, AllOf(HasSubstr("<html lang=\"en\">"), HasSubstr("<title>Plan of job j<"),
                          HasSubstr("What was refused"), HasSubstr("embedding, block")));
}

TEST(ForecastPage, SaysWhatRanksSendToOneAnother) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "1f1b";
  const std::string page = PageOf(job, ForecastsOf(job));
  EXPECT_EQ(WrongTag(page), "");
  // Eight microbatches of two sequences: 2 x 32 x 64 floats.
  EXPECT_THAT(page, AllOf(HasSubstr("Each pipeline sends 16 messages."),
                          HasSubstr("<th scope=\"row\">rank 1 to 0</th><td>8</td>"
                                    "<td>16 KiB</td><td>128 KiB</td>")));
  job.parallelism.pipeline = 1;
  EXPECT_THAT(PageOf(job, ForecastsOf(job)), Not(HasSubstr("Messages of candidate")));
}

TEST(ForecastPage, IsOneFileThatAsksForNothing) {
  const config::JobSpec job = SmallGpt2Job();
  const std::string page = PageOf(job, ForecastsOf(job));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* request : {"<script", " src=", " href=", "@import", "url("})
    EXPECT_THAT(page, Not(HasSubstr(request)));
}

TEST(ForecastPage, NamesAndReasonsAreTextAndNothingElse) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "1f1b";
  plan::Forecasts forecasts = ForecastsOf(job);
  job.name = "<b>&\"TAKT_BODY";
  forecasts.candidates[0].plan.schedule.name = "file:</h2><script>";
  forecasts.refused.push_back({.schedule = "<i>", .reason = "</table>\n\x1b[31m"});
  forecasts.origins.guessed = {"<img>"};
  const std::string page = PageOf(job, forecasts);
  EXPECT_EQ(WrongTag(page), "");
  for (const char* tag : {"<b>", "<script>", "<i>", "<img>", "\x1b"})
    EXPECT_THAT(page, Not(HasSubstr(tag)));
  EXPECT_THAT(page, AllOf(HasSubstr("<title>Plan of job &lt;b&gt;&amp;\"TAKT_BODY<"),
                          HasSubstr("file:&lt;/h2&gt;&lt;script&gt;"), HasSubstr("&lt;img&gt;"),
                          HasSubstr("&lt;/table&gt; ?[31m")));
}

TEST(ForecastPage, SaysWhereTimesComeFrom) {
  const config::JobSpec job = SmallGpt2Job();
  plan::Forecasts forecasts = ForecastsOf(job);
  forecasts.origins = {.measured = {"block of 64", "head"}, .guessed = {"messages"}};
  const std::string page = PageOf(job, forecasts);
  EXPECT_THAT(page, AllOf(HasSubstr("Measured: 2"), HasSubstr("<li>block of 64</li>"),
                          HasSubstr("Interpolated: 0"), HasSubstr("Guessed: 1")));
}

TEST(ForecastPage, SaysWhatIsLackingWhenNothingFits) {
  const config::JobSpec job = SmallGpt2Job();
  const plan::PlanOptions options{.max_workers = 2, .worker_memory_bytes = 1000};
  const std::string page = RenderForecastPage(job, options, ForecastsOf(job, options)).value();
  EXPECT_EQ(WrongTag(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("Nothing can run: "), HasSubstr("a rank needs"),
                          Not(HasSubstr("<svg"))));
}

TEST(StepPicture, DrawsOneRankAsOneRow) {
  config::JobSpec job = EmulatedJob(2, 3, /*activation_bytes=*/1 << 20);
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "1f1b";
  const plan::Forecasts forecasts = ForecastsOf(job);
  const std::string picture = DrawStep(forecasts.candidates[0].plan, 0).value();
  EXPECT_EQ(WrongTag(picture), "");
  EXPECT_EQ(CountBoxes(picture), 6u);  // F and B of three microbatches
  EXPECT_EQ(Count(picture, "class=\"row\""), 1u);
  // Two layers of 5 ms each.
  EXPECT_THAT(picture, AllOf(HasSubstr("<title>0F0: 0.000 to 10.000 ms</title>"),
                             HasSubstr("<title>0B2: 70.000 to 90.000 ms</title>"),
                             HasSubstr("rank 0</tspan> 0.0% idle"), Not(HasSubstr("not drawn")),
                             Not(HasSubstr("too narrow"))));
  // The boxes fill the whole width.
  EXPECT_THAT(picture, HasSubstr("<path class=\"idle\" d=\"M0 0h820v22H0z\"/>"));
  EXPECT_THAT(picture, HasSubstr("<path fill=\"#86cc92\" d=\"M637.78 0h182.22v22h-182.22z\">"));
}

TEST(StepPicture, ShowsThePeakOfEveryRankAgainstTheLimit) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = "gpipe";
  const plan::Plan plan = ForecastsOf(job).candidates[0].plan;
  const std::string picture = DrawStep(plan, 80 << 20).value();
  const sim::Report report =
      sim::Simulate(plan.programs, plan.costs, {.follow_memory = true}).value();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const MemoryBytes& bytes = plan.memory[rank];
    std::int64_t held = 0;
    for (const sim::HeldBytes& at : report.held[rank]) held = std::max(held, at.stash + at.buffers);
    EXPECT_GT(held, 0);
    // Nothing in use is without a slot.
    EXPECT_LE(held, bytes[MemoryKind::kStash] + bytes[MemoryKind::kMessages]);
    const std::int64_t peak =
        bytes.total() - bytes[MemoryKind::kStash] - bytes[MemoryKind::kMessages] + held;
    EXPECT_THAT(picture, HasSubstr(absl::StrCat("rank ", rank, ": up to ",
                                                FormatBytes(static_cast<double>(peak)))));
  }
  EXPECT_EQ(Count(picture, ">of 80 MiB<"), 4u);
  EXPECT_EQ(Count(picture, "<path class=\"limit\""), 4u);
  // A limit far above the charts is only said.
  const std::string roomy = DrawStep(plan, std::int64_t{1} << 40).value();
  EXPECT_EQ(Count(roomy, "<path class=\"limit\""), 0u);
  EXPECT_THAT(roomy, HasSubstr("A worker has 1 TiB for a rank"));
}

TEST(StepPicture, ShowsTheFirstStepOfScheduleWithoutFlush) {
  config::JobSpec job = EmulatedJob(4, 8, /*activation_bytes=*/1 << 20);
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = "pipedream";
  const std::string picture = DrawStep(ForecastsOf(job).candidates[0].plan, 0).value();
  EXPECT_EQ(WrongTag(picture), "");
  EXPECT_THAT(picture, HasSubstr("this is the first step"));
}

TEST(StepPicture, OfManyRanksShowsTheFirstAndTheLast) {
  config::JobSpec job = EmulatedJob(64, 512, /*activation_bytes=*/1 << 20);
  job.parallelism.pipeline = 64;
  job.parallelism.schedule = "1f1b";
  plan::Forecasts forecasts = ForecastsOf(job);
  const std::string picture = DrawStep(forecasts.candidates[0].plan, 0).value();
  // A rank has 2 x 512 actions, so six ranks fit.
  EXPECT_EQ(CountBoxes(picture), 6 * 2 * 512u);
  EXPECT_THAT(picture, AllOf(HasSubstr("ranks 3 to 60: not drawn"), HasSubstr("rank 63</tspan>"),
                             Not(HasSubstr("too narrow"))));
  forecasts.candidates.resize(5, forecasts.candidates[0]);
  const std::string page = PageOf(job, forecasts);
  EXPECT_LT(page.size(), 10'000'000u);
  std::printf("64 ranks, 512 microbatches, five candidates: %.1f MB\n",
              1e-6 * static_cast<double>(page.size()));
}

TEST(StepPicture, JoinsActionsThatAreTooMany) {
  config::JobSpec job = EmulatedJob(2, 10'000, /*activation_bytes=*/1 << 20);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "1f1b";
  const std::string picture = DrawStep(ForecastsOf(job).candidates[0].plan, 0).value();
  EXPECT_LE(CountBoxes(picture), kMostPictureBoxes);
  EXPECT_GT(CountBoxes(picture), 1000u);
  EXPECT_LT(picture.size(), 2'000'000u);
  EXPECT_THAT(picture, AllOf(HasSubstr("too narrow to tell apart"), HasSubstr(" actions from 0F"),
                             HasSubstr("rank 1</tspan>"), Not(HasSubstr("not drawn"))));
}

}  // namespace
}  // namespace takt::cli
