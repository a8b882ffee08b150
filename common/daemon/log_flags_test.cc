// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/log_flags.h"

#include <gtest/gtest.h>

#include <string>

namespace takt::daemon {
namespace {

class LogFlagsTest : public ::testing::Test {
 protected:
  LogFlagsTest() { AddLogFlags(app_, level_, format_); }

  // Returns the error of a command line; empty: there is none.
  std::string Parse(const std::string& arguments) {
    try {
      app_.parse(arguments, false);
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "";
  }

  CLI::App app_;
  LogLevel level_ = LogLevel::kWarning;
  LogFormat format_ = LogFormat::kText;
};

TEST_F(LogFlagsTest, SetWhatIsGivenAndNothingElse) {
  EXPECT_EQ(Parse("--log-format json"), "");
  EXPECT_EQ(level_, LogLevel::kWarning);
  EXPECT_EQ(format_, LogFormat::kJson);
  EXPECT_EQ(Parse("--log-level debug"), "");
  EXPECT_EQ(level_, LogLevel::kDebug);
}

TEST_F(LogFlagsTest, AnotherNameIsRefusedWithThoseThatThereAre) {
  EXPECT_EQ(Parse("--log-level nonsense"),
            "--log-level: nonsense not in {debug,info,warning,error}");
  EXPECT_EQ(Parse("--log-level 1"), "--log-level: 1 not in {debug,info,warning,error}");
  EXPECT_EQ(Parse("--log-format xml"), "--log-format: xml not in {text,json}");
}

}  // namespace
}  // namespace takt::daemon
