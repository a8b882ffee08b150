// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/coordinator_channels.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::worker_rpc {
namespace {

using ::testing::HasSubstr;

TEST(CoordinatorChannels, RefusesAddressesThatCannotBe) {
  EXPECT_THAT(CoordinatorChannels::Create({.coordinator = "unix:/" + std::string(107, 'a')})
                  .status()
                  .message(),
              HasSubstr("107 bytes"));
  EXPECT_THAT(CoordinatorChannels::Create({.coordinator = "nowhere"}).status().message(),
              HasSubstr("unix:PATH or HOST:PORT"));
  EXPECT_THAT(CoordinatorChannels::Create({.coordinator = "h:1"}).status().message(),
              HasSubstr("--insecure"));
  EXPECT_TRUE(CoordinatorChannels::Create({.coordinator = "h:1", .insecure = true}).ok());
  EXPECT_THAT(CoordinatorChannels::Create({.coordinator = "h:1,nowhere", .insecure = true})
                  .status()
                  .message(),
              HasSubstr("nowhere"));
}

TEST(CoordinatorChannels, GoRoundTheList) {
  const auto channels =
      CoordinatorChannels::Create({.coordinator = "a:1,b:2", .insecure = true}).value();
  EXPECT_EQ(channels->address(), "a:1");
  const auto first = channels->control();
  EXPECT_NE(first, channels->bulk());
  channels->Ended(absl::UnavailableError("gone"));
  EXPECT_EQ(channels->address(), "b:2");
  EXPECT_NE(channels->control(), first);
  channels->Ended(absl::UnavailableError("gone"));
  EXPECT_EQ(channels->control(), first);
}

TEST(CoordinatorChannels, TryTheRelayFirstAndTheCoordinatorsIfItIsGone) {
  const auto channels =
      CoordinatorChannels::Create({.coordinator = "a:1", .insecure = true, .relay = "unix:/r"})
          .value();
  EXPECT_TRUE(channels->has_relay());
  EXPECT_EQ(channels->address(), "unix:/r");
  channels->Ended(absl::OkStatus());
  EXPECT_TRUE(channels->through_relay()) << "it has lost its coordinator, and waits for it";
  channels->Ended(absl::UnavailableError("gone"));
  EXPECT_FALSE(channels->through_relay());
  EXPECT_EQ(channels->address(), "a:1");
  channels->ReturnToRelay();
  EXPECT_EQ(channels->address(), "a:1") << "until the stream has ended";
  channels->Ended(absl::CancelledError("asked to"));
  EXPECT_TRUE(channels->through_relay());
  channels->Ended(absl::UnavailableError("gone"));
  channels->Ended(absl::OkStatus());
  EXPECT_TRUE(channels->through_relay()) << "a coordinator that ends a stream does not wait";
}

TEST(CoordinatorChannels, ARelayIsOnThisHost) {
  EXPECT_THAT(
      CoordinatorChannels::Create({.coordinator = "unix:/c", .relay = "h:1"}).status().message(),
      HasSubstr("--relay"));
}

}  // namespace
}  // namespace takt::worker_rpc
