// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/hub.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace takt::cli {
namespace {

using testing::HasSubstr;
using testing::Optional;

constexpr absl::Duration kNow = absl::ZeroDuration();

TEST(Hub, EveryViewerGetsTheNewestStateOnce) {
  Hub hub;
  Hub::Viewer viewer = {.views = {"cluster"}}, other = {.views = {"cluster"}};
  EXPECT_EQ(hub.Next(viewer, kNow), "");
  hub.Set("cluster", "workers", "1");
  hub.Set("cluster", "workers", "2");
  hub.Set("job:a", "job", "3");
  const std::string event = "data: {\"view\":\"cluster\",\"kind\":\"workers\",\"value\":2}\n\n";
  EXPECT_EQ(hub.Next(viewer, kNow), event);
  EXPECT_EQ(hub.Next(viewer, kNow), "");
  hub.Set("cluster", "workers", "2");  // no news
  EXPECT_EQ(hub.Next(viewer, kNow), "");
  EXPECT_EQ(hub.Next(other, kNow), event);
}

TEST(Hub, ListsGoOnWhereTheViewerIs) {
  Hub hub;
  Hub::Viewer viewer = {.views = {"job:a"}};
  hub.Append("job:a", "steps", "1");
  hub.Append("job:a", "steps", "2");
  EXPECT_THAT(hub.Next(viewer, kNow), Optional(HasSubstr("\"values\":[1,2]}")));
  EXPECT_EQ(hub.Next(viewer, kNow), "");
  hub.Append("job:a", "steps", "3");
  EXPECT_THAT(hub.Next(viewer, kNow), Optional(HasSubstr("\"values\":[3]}")));
}

TEST(Hub, SlowViewersMissWhatIsNotKept) {
  Hub hub({.entries = 3});
  Hub::Viewer viewer = {.views = {"job:a"}};
  for (int i = 0; i < 10; ++i) hub.Append("job:a", "steps", absl::StrCat(i));
  EXPECT_THAT(hub.Next(viewer, kNow), Optional(HasSubstr("\"values\":[7,8,9]}")));
}

TEST(Hub, MemoryAndFramesHaveLimits) {
  Hub hub({.bytes = 100, .bytes_of_frame = 20});
  Hub::Viewer viewer = {.views = {"job:a"}};
  const std::string entry = "\"" + std::string(18, 'x') + "\"";
  for (int i = 0; i < 50; ++i) hub.Append("job:a", "logs", entry);
  int frames = 0;
  while (!hub.Next(viewer, kNow)->empty()) ++frames;
  EXPECT_EQ(frames, 5);                                // of one entry each: what 100 bytes hold
  hub.Append("job:a", "logs", std::string(200, '1'));  // more than all may be
  EXPECT_EQ(hub.Next(viewer, kNow), "");
}

TEST(Hub, ForgottenViewsBeginAgain) {
  Hub hub;
  Hub::Viewer viewer = {.views = {"job:a"}};
  hub.Append("job:a", "steps", "1");
  EXPECT_THAT(hub.Next(viewer, kNow), Optional(HasSubstr("[1]")));
  hub.Forget("job:a");
  hub.Append("job:a", "steps", "1");
  EXPECT_THAT(hub.Next(viewer, kNow), Optional(HasSubstr("[1]")));
}

TEST(Hub, NamesOfViewsAreJson) {
  Hub hub;
  Hub::Viewer viewer = {.views = {"job:\"\n"}};
  hub.Set("job:\"\n", "job", "1");
  EXPECT_THAT(hub.Next(viewer, kNow), Optional(HasSubstr("\"view\":\"job:\\\"\\n\"")));
}

TEST(Hub, WakesViewersAtNewsAndAtTheEnd) {
  Hub hub;
  std::optional<std::string> news, end = "";
  std::thread reader([&] {
    Hub::Viewer viewer = {.views = {"cluster"}};
    news = hub.Next(viewer, absl::InfiniteDuration());
    end = hub.Next(viewer, absl::InfiniteDuration());
  });
  hub.Set("cluster", "workers", "1");
  hub.Close();
  reader.join();
  // Close may come before the reader looked.
  if (news.has_value()) {
    EXPECT_THAT(*news, HasSubstr("\"value\":1"));
  }
  EXPECT_FALSE(end.has_value());
}

}  // namespace
}  // namespace takt::cli
