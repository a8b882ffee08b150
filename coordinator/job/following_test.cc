// SPDX-License-Identifier: Apache-2.0
// Tests a coordinator that follows another one.
#include <memory>
#include <utility>

#include "coordinator/job/coordinator.h"
#include "coordinator/store/memory_store.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

TEST(FollowingCoordinator, ShowsWhatItIsGivenAndDropsEvents) {
  const std::unique_ptr<store::Store> store = store::NewMemoryStore();
  const auto coordinator = Coordinator::Follow(store.get());
  coordinator->board().Publish({.number = 1, .id = "id-a", .name = "a"});
  EXPECT_NE(coordinator->board().FindByName("a"), nullptr);
  auto dropped = std::make_shared<int>(1);
  const std::weak_ptr<int> event = dropped;
  coordinator->Post([dropped = std::move(dropped)](Cluster&, Moment) { FAIL(); });
  EXPECT_TRUE(event.expired());
  EXPECT_TRUE(coordinator->WaitForEnd().ok());
  EXPECT_EQ(store->Load().value().epoch, 0) << "only a leader raises it";
}

TEST(FollowingCoordinator, EndsWithTheFirstReason) {
  const std::unique_ptr<store::Store> store = store::NewMemoryStore();
  const auto coordinator = Coordinator::Follow(store.get());
  coordinator->Stop(absl::UnavailableError("the lease is lost"));
  coordinator->Stop(absl::InternalError("later"));
  EXPECT_EQ(coordinator->WaitForEnd().message(), "the lease is lost");
}

}  // namespace
}  // namespace takt::job
