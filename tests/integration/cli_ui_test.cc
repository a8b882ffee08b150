// SPDX-License-Identifier: Apache-2.0
// Tests the page of `takt ui` with a cluster of `takt local up`.
#include <httplib.h>
#include <signal.h>

#include <future>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"
#include "tests/integration/ui_page.h"

namespace takt::integration {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kJob[] =
    "name: a\n"
    "model: {family: emulated, layers: 2, forward_ms: 4, input_grad_ms: 4, weight_grad_ms: 4, "
    "activation_bytes: 4096}\n"
    "batch: {global: 4, microbatch: 1}\n"
    "steps: 40\n"
    "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n";

class UiTest : public testing::Test {
 protected:
  ~UiTest() override { Takt({"local", "down"}); }  // where a test did not get that far

  std::unique_ptr<Command> Start(const std::vector<std::string>& arguments) {
    return std::make_unique<Command>(
        "takt", arguments, std::vector<std::string>{"XDG_STATE_HOME=" + directory_.Path("state")});
  }
  std::string Takt(const std::vector<std::string>& arguments) { return Start(arguments)->Wait(); }

  const TestDirectory directory_;
};

TEST_F(UiTest, ShowsARunningJobToWhoHasTheAddress) {
  ASSERT_EQ(Takt({"local", "up", "--workers", "2"}), "exit status 0");
  const auto ui = Start({"ui", "-o", "json"});
  const UiPage page = PageOf(*ui);

  ASSERT_EQ(Takt({"submit", directory_.Write("a.yaml", kJob)}), "exit status 0");
  EXPECT_THAT(page.Read("/api/stream?view=job:a", "[40,"),
              AllOf(HasSubstr("\"schedule\":\"1f1b\""), HasSubstr("\"kind\":\"steps\"")));
  EXPECT_THAT(page.Read("/api/stream?view=cluster", "SUCCEEDED"),
              HasSubstr("\"kind\":\"workers\""));
  EXPECT_THAT(page.Read("/api/stream?view=timeline:a", "\"overview\""), HasSubstr("\"num_bins\":"));
  httplib::Client browser("127.0.0.1", page.port);
  const auto picture = browser.Get("/api/timeline?job=a", page.cookie);
  ASSERT_TRUE(picture);
  EXPECT_EQ(json::parse(picture->body)["ranks"].size(), 2u);
  EXPECT_EQ(browser.Get("/api/timeline?job=a")->status, 403);

  ui->Signal(SIGINT);
  EXPECT_EQ(ui->Wait(), "exit status 0");
}

TEST_F(UiTest, GoesOnWithTheNextJobOfTheName) {
  ASSERT_EQ(Takt({"local", "up", "--workers", "2"}), "exit status 0");
  const auto ui = Start({"ui", "-o", "json"});
  const UiPage page = PageOf(*ui);
  const std::string job = directory_.Write("a.yaml", kJob);
  ASSERT_EQ(Takt({"submit", job, "--wait"}), "exit status 0");
  std::future<std::string> both =
      std::async(std::launch::async, [&] { return page.Read("/api/stream?view=job:a", "[45,"); });
  page.Read("/api/stream?view=job:a", "[40,");
  EXPECT_EQ(Takt({"delete", "a"}), "exit status 0");
  EXPECT_EQ(Takt({"submit", job, "--set", "steps=45", "--wait"}), "exit status 0");
  EXPECT_THAT(both.get(), AllOf(HasSubstr("[40,"), HasSubstr("[45,")));
  ui->Signal(SIGINT);
  EXPECT_EQ(ui->Wait(), "exit status 0");
}

TEST_F(UiTest, SaysThatTheCoordinatorIsAwayAndGoesOn) {
  ASSERT_EQ(Takt({"local", "up", "--workers", "1"}), "exit status 0");
  const auto ui = Start({"ui", "-o", "json"});
  const UiPage page = PageOf(*ui);
  ASSERT_EQ(Takt({"local", "down"}), "exit status 0");
  EXPECT_THAT(page.Read("/api/stream?view=cluster", "no answer from the coordinator"),
              HasSubstr("\"kind\":\"problem\""));
  ui->Signal(SIGTERM);
  EXPECT_EQ(ui->Wait(), "exit status 0");
}

TEST_F(UiTest, WithoutACoordinatorThereIsNoPage) {
  const auto ui = Start({"--coordinator", "unix:" + directory_.Path("none"), "ui"});
  EXPECT_EQ(ui->Wait(), "exit status 3");
  EXPECT_EQ(ui->out(), "");
}

}  // namespace
}  // namespace takt::integration
