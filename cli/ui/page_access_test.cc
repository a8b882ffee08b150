// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/page_access.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace takt::cli {
namespace {

using testing::HasSubstr;

constexpr int kPort = 4711;

// A request of the page itself, which is answered.
RequestFacts Good() {
  return {.method = "GET",
          .path = "/api/stream",
          .hosts = {"127.0.0.1:4711"},
          .site = "same-origin",
          .cookies = "other=1; takt_ui_4711=secret"};
}

int StatusOf(const RequestFacts& facts) { return PageAccess(kPort, "secret").Judge(facts).status; }

TEST(PageAccess, AnswersThePageItself) {
  EXPECT_EQ(StatusOf(Good()), 200);
  RequestFacts facts = Good();
  facts.method = "HEAD";
  facts.origins = {"http://127.0.0.1:4711"};
  EXPECT_EQ(StatusOf(facts), 200);
  facts.hosts = {"LocalHost:4711"};
  facts.origins = {"http://localhost:4711"};
  EXPECT_EQ(StatusOf(facts), 200);
  facts.site.clear();  // no browser
  EXPECT_EQ(StatusOf(facts), 200);
}

TEST(PageAccess, RefusesOtherNamesAndPorts) {
  for (const char* host : {"", "127.0.0.1", "127.0.0.1:80", "evil.example:4711", "localhost:47110",
                           "127.0.0.1:4711.evil.example", "127.0.0.1:4711:4711"}) {
    RequestFacts facts = Good();
    facts.hosts = {host};
    EXPECT_EQ(StatusOf(facts), 421) << host;
  }
  RequestFacts facts = Good();
  facts.hosts = {};
  EXPECT_EQ(StatusOf(facts), 421);
  facts.hosts = {"127.0.0.1:4711", "evil.example:4711"};
  EXPECT_EQ(StatusOf(facts), 421);
}

TEST(PageAccess, RefusesEveryMethodThatMayChange) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", ""}) {
    RequestFacts facts = Good();
    facts.method = method;
    EXPECT_EQ(StatusOf(facts), 405) << method;
  }
}

TEST(PageAccess, RefusesPagesOfOtherOrigins) {
  for (const char* origin : {"http://evil.example", "null", "http://127.0.0.1", "",
                             "https://127.0.0.1:4711", "http://127.0.0.1:4712"}) {
    RequestFacts facts = Good();
    facts.origins = {origin};
    EXPECT_EQ(StatusOf(facts), 403) << origin;
  }
  for (const char* site : {"cross-site", "same-site"}) {
    RequestFacts facts = Good();
    facts.site = site;
    EXPECT_EQ(StatusOf(facts), 403) << site;
  }
}

TEST(PageAccess, RefusesRequestsWithoutTheToken) {
  for (const char* cookies : {"", "takt_ui_4711=", "takt_ui_4711=secreT", "takt_ui_4711=secret1",
                              "takt_ui_4712=secret", "x=takt_ui_4711=secret"}) {
    RequestFacts facts = Good();
    facts.cookies = cookies;
    const Verdict verdict = PageAccess(kPort, "secret").Judge(facts);
    EXPECT_EQ(verdict.status, 403) << cookies;
    EXPECT_THAT(verdict.reason, HasSubstr("open the address that takt ui printed"));
  }
}

TEST(PageAccess, AddressWithTheTokenGivesTheCookie) {
  const PageAccess access(kPort, "secret");
  RequestFacts facts = Good();
  facts.path = "/";
  facts.cookies.clear();
  facts.token = "secret";
  facts.site = "cross-site";  // a link in a terminal that is a page
  EXPECT_EQ(access.Judge(facts).status, 200);
  EXPECT_TRUE(access.Judge(facts).sets_cookie);
  facts.path = "/api/stream";  // only the page itself is opened by the address
  EXPECT_EQ(access.Judge(facts).status, 403);
  facts.path = "/";
  facts.token = "secre";
  EXPECT_EQ(access.Judge(facts).status, 403);
  EXPECT_EQ(access.Address(), "http://127.0.0.1:4711/?token=secret");
  EXPECT_EQ(access.Cookie(), "takt_ui_4711=secret; Path=/; HttpOnly; SameSite=Strict");
}

TEST(PageAccess, TokensAreLongAndDiffer) {
  EXPECT_EQ(MakeToken().size(), 40u);
  EXPECT_NE(MakeToken(), MakeToken());
}

}  // namespace
}  // namespace takt::cli
