// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace takt::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SettingsTest : public ::testing::Test {
 protected:
  SettingsTest() {
    app_.add_option("--metrics-listen", metrics_listen_);
    app_.add_option("--threads", threads_)->check(CLI::Range(0, 8));
    app_.add_flag("--insecure", insecure_);
    app_.set_version_flag("--version", "1");
    AddSettings(app_, file_, "TAKT_TEST");
  }
  ~SettingsTest() override {
    std::filesystem::remove(file_);
    unsetenv("TAKT_TEST_THREADS");
  }

  void Write(const std::string& text) { std::ofstream(file_) << text; }
  void Parse(const std::string& arguments) { app_.parse(arguments, false); }
  std::string Refusal(const std::string& arguments) {
    try {
      Parse(arguments);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

  const std::string file_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".yaml";
  CLI::App app_;
  std::string metrics_listen_ = "none";
  int threads_ = 1;
  bool insecure_ = false;
};

TEST_F(SettingsTest, TheFileIsReadWhereItIs) {
  Write("metrics_listen: 127.0.0.1:9464\nthreads: 3\ninsecure: true\n");
  Parse("");
  EXPECT_EQ(metrics_listen_, "127.0.0.1:9464");
  EXPECT_EQ(threads_, 3);
  EXPECT_TRUE(insecure_);
}

TEST_F(SettingsTest, NoFileAtTheUsualPlaceIsNoError) {
  Parse("");
  EXPECT_EQ(threads_, 1);
}

TEST_F(SettingsTest, AFileThatWasNamedMustBeThere) {
  EXPECT_THAT(Refusal("--settings /nowhere/takt.yaml"), HasSubstr("/nowhere/takt.yaml"));
}

TEST_F(SettingsTest, TheEnvironmentWinsOverTheFileAndTheCommandLineOverBoth) {
  Write("threads: 3\nmetrics_listen: a:1\n");
  setenv("TAKT_TEST_THREADS", "4", 1);
  Parse("--metrics-listen b:2");
  EXPECT_EQ(threads_, 4);
  EXPECT_EQ(metrics_listen_, "b:2");
}

TEST_F(SettingsTest, AnUnknownKeyIsRefusedWithItsPlaceAndTheKnownOnes) {
  Write("threads: 3\nmetrics_listn: a\n");
  EXPECT_THAT(Refusal(""), AllOf(HasSubstr(file_ + ":2:1"), HasSubstr("metrics_listn"),
                                 HasSubstr("metrics_listen, threads, insecure")));
}

TEST_F(SettingsTest, WhatIsNoFlatMapIsRefused) {
  Write("threads: [1, 2]\n");
  EXPECT_THAT(Refusal(""), HasSubstr("must be one value"));
  Write("- threads\n");
  EXPECT_THAT(Refusal(""), HasSubstr("must be a map"));
  Write("threads: 1\nthreads: 2\n");
  EXPECT_THAT(Refusal(""), HasSubstr("is given twice"));
  Write("threads: {\n");
  EXPECT_THAT(Refusal(""), HasSubstr("settings file"));
}

TEST_F(SettingsTest, AValueThatItsOptionRefusesIsToldWithItsPlace) {
  Write("insecure: true\nthreads: 9\n");
  EXPECT_THAT(Refusal(""), HasSubstr(file_ + ":2:10: threads is 9: is refused: "));
  Write("threads: many\n");
  EXPECT_THAT(Refusal(""), HasSubstr(file_ + ":1:10: threads is many: is refused: "));
  Write("insecure: maybe\n");
  EXPECT_EQ(Refusal(""), file_ +
                             ":1:11: insecure is maybe: is no value of this setting, or out of "
                             "its range");
}

TEST_F(SettingsTest, AValueThatTheCommandLineReplacesIsNotRead) {
  Write("threads: 9\n");
  Parse("--threads 4");
  EXPECT_EQ(threads_, 4);
}

TEST_F(SettingsTest, VersionAndTheFileItselfAreNoSettings) {
  Write("version: true\n");
  EXPECT_THAT(Refusal(""), HasSubstr("is not a setting"));
  Write("settings: a.yaml\n");
  EXPECT_THAT(Refusal(""), HasSubstr("is not a setting"));
}

}  // namespace
}  // namespace takt::daemon
