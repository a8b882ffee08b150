// SPDX-License-Identifier: Apache-2.0
#include "common/base/log.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt {
namespace {

using testing::ElementsAre;

TEST(Log, SinkGetsTextWithoutTheFieldsOfTheProcessWhateverTheFormat) {
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    InitLogging({.format = format, .fields = {{"worker", "w0"}}});
    Log(LogLevel::kInfo, "rank admitted", {{"job", "j"}, {"reason", "two words"}});
    Log(LogLevel::kDebug, "not shipped");
  }
  SetLogSink(nullptr);
  InitLogging({});
  const char kLine[] = "rank admitted job=j reason=\"two words\"";
  EXPECT_THAT(lines, ElementsAre(kLine, kLine));
}

TEST(Log, ValuesCannotMoveACursorOrBreakUtf8) {
  std::string got;
  SetLogSink([&](LogLevel, std::string_view line) { got = line; });
  Log(LogLevel::kInfo, "m", {{"a", "\x1b[2J"}, {"b", "\xff"}, {"c", "\u00e9"}, {"d", ""}});
  SetLogSink(nullptr);
  EXPECT_EQ(got, "m a=\"\\u001b[2J\" b=\"\uFFFD\" c=\"\u00e9\" d=\"\"");
}

}  // namespace
}  // namespace takt
