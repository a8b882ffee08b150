// SPDX-License-Identifier: Apache-2.0
// A page in a headless browser.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/testing/test_directory.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::browser {

inline bool HasBrowser() { return std::system("command -v chromium >/dev/null") == 0; }

#define SKIP_WITHOUT_BROWSER()                                                     \
  if (!takt::browser::HasBrowser()) {                                              \
    GTEST_SKIP() << "chromium is not installed: deploy/install-deps.sh --browser"; \
  }

// Opens `page` with `script` run after its own, and returns what it gives to `report(VALUE)`. Null:
// it did not come to that.
inline nlohmann::json RunInPage(const std::string& page, const std::string& script) {
  const cli::TestDirectory directory;
  const std::string probe = absl::StrCat(
      "<pre id=\"probe\"></pre><script>const report = value => {\n"
      "  document.getElementById('probe').textContent = JSON.stringify(value);\n};\n",
      script, "</script></body>");
  const std::string path =
      directory.Write("page.html", absl::StrReplaceAll(page, {{"</body>", probe}}));
  const std::string dom_path = directory.Path("dom.html");
  const std::string command =
      absl::StrCat("timeout 120 chromium --headless --no-sandbox --disable-gpu --user-data-dir=",
                   directory.Path("profile"), " --window-size=1200,900 --dump-dom file://", path,
                   " >", dom_path, " 2>", directory.Path("log"));
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::stringstream dom;
  dom << std::ifstream(dom_path).rdbuf();
  const std::string text = dom.str();
  const std::string open = "<pre id=\"probe\">";
  const std::size_t begin = text.find(open);
  const std::size_t end = begin == text.npos ? text.npos : text.find("</pre>", begin);
  if (end == text.npos || end == begin + open.size()) return nullptr;
  return nlohmann::json::parse(
      absl::StrReplaceAll(text.substr(begin + open.size(), end - begin - open.size()),
                          {{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}}));
}

}  // namespace takt::browser
