// SPDX-License-Identifier: Apache-2.0
// Reads what the page of `takt ui` gets, as a browser does.
#pragma once

#include <httplib.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/command.h"

namespace takt::integration {

struct UiPage {
  int port = 0;
  httplib::Headers cookie;

  // Reads a stream until it has sent `text`, or a minute is over.
  std::string Read(const std::string& path, const std::string& text) const {
    std::string all;
    httplib::Client browser("127.0.0.1", port);
    browser.set_read_timeout(30);
    const absl::Time end = absl::Now() + absl::Minutes(1);
    browser.Get(path, cookie, [&](const char* data, std::size_t size) {
      all.append(data, size);
      return !absl::StrContains(all, text) && absl::Now() < end;
    });
    return all;
  }
};

// Returns where the page of `takt ui -o json` is.
inline UiPage PageOf(Command& ui) {
  EXPECT_TRUE(ui.WaitForText("\"url\"")) << ui.err();
  const nlohmann::json printed = nlohmann::json::parse(ui.out());
  const int port = printed["port"];
  const std::string url = printed["url"];
  const std::string token = std::vector<std::string>(absl::StrSplit(url, "token=")).back();
  return {port, {{"Cookie", absl::StrCat("takt_ui_", port, "=", token)}}};
}

}  // namespace takt::integration
