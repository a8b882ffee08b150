// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/writes.h"

#include "coordinator/etcd/keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::etcd {
namespace {

using etcdserverpb::RequestOp;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Prints operations as "+key=value", "?key=value" (unless it is there), "-key" or "-[begin,end)".
std::vector<std::string> Text(const std::vector<RequestOp>& operations) {
  std::vector<std::string> text;
  for (const RequestOp& operation : operations) {
    if (operation.has_request_put()) {
      text.push_back("+" + operation.request_put().key() + "=" + operation.request_put().value());
    } else if (operation.has_request_txn()) {
      const auto& put = operation.request_txn().success(0).request_put();
      text.push_back("?" + put.key() + "=" + put.value());
    } else if (operation.request_delete_range().range_end().empty()) {
      text.push_back("-" + operation.request_delete_range().key());
    } else {
      text.push_back("-[" + operation.request_delete_range().key() + "," +
                     operation.request_delete_range().range_end() + ")");
    }
  }
  return text;
}

TEST(Writes, NothingHasNoParts) { EXPECT_THAT(Writes("t/").Parts(), IsEmpty()); }

TEST(Writes, TheLastWriteOfAKeyCounts) {
  Writes writes("t/");
  writes.Put("a", "1");
  writes.Put("a", "2");
  writes.Put("b", "3");
  writes.Erase("b");
  writes.Erase("c");
  writes.Put("c", "4");
  writes.PutOnce("d", "5");
  writes.PutOnce("d", "6");
  ASSERT_THAT(writes.Parts(), SizeIs(1));
  EXPECT_THAT(Text(writes.Parts()[0]), ElementsAre("+t/a=2", "-t/b", "+t/c=4", "?t/d=5"));
}

TEST(Writes, AnErasedRangeTakesWhatWasPutIntoIt) {
  Writes writes("t/");
  writes.Put("log/x/1", "1");
  writes.EraseRange("log/x/", EndOf("log/x/"));
  writes.Put("log/x/2", "2");
  writes.Put("log/y/1", "3");
  ASSERT_THAT(writes.Parts(), SizeIs(1));
  EXPECT_THAT(Text(writes.Parts()[0]), ElementsAre("-[t/log/x/,t/log/x0)", "+t/log/y/1=3"));
}

TEST(Writes, ALargeValueHasPiecesAndLosesThoseOfALargerOne) {
  Writes writes("t/", {.value_bytes = 2});
  writes.Put("a", "12345", /*pieces=*/true);
  ASSERT_THAT(writes.Parts(), SizeIs(1));
  const std::string key = "t/a";
  EXPECT_THAT(Text(writes.Parts()[0]),
              ElementsAre("-[" + PieceKey(key, 2) + "," + EndOfPieces(key) + ")", "+t/a=12",
                          "+" + PieceKey(key, 0) + "=34", "+" + PieceKey(key, 1) + "=5"));
}

TEST(Writes, PartsKeepToTheLimits) {
  Writes writes("t/", {.part_bytes = 20, .part_operations = 3});
  for (const char* key : {"a", "b", "c", "d"}) writes.Put(key, "1");
  writes.Put("e", std::string(16, 'x'));
  const auto parts = writes.Parts();
  ASSERT_THAT(parts, SizeIs(3));
  EXPECT_THAT(parts[0], SizeIs(3));
  EXPECT_THAT(parts[1], SizeIs(1)) << "the next one would have more than 20 bytes";
  EXPECT_THAT(parts[2], SizeIs(1));
}

}  // namespace
}  // namespace takt::etcd
