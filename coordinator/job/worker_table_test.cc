// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/worker_table.h"

#include <memory>
#include <string>
#include <vector>

#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using membership::WorkerState;
using ::testing::ElementsAre;

class NullSession final : public WorkerSession {
 public:
  void Send(const control::Command&) override {}
  void Close(const absl::Status&) override {}
};

class WorkerTableTest : public ::testing::Test {
 protected:
  WorkerTableTest() {
    for (const char* name : {"w0", "w1", "w2"}) Attach(name);
  }
  void Attach(const std::string& name) {
    EXPECT_TRUE(table_
                    .Attach({.worker = name,
                             .incarnation = "a",
                             .protocol_version = kProtocolVersion,
                             .host = "h"},
                            SessionId(++last_session_), std::make_shared<NullSession>(), {})
                    .ok());
  }
  static membership::Voucher NobodyVouches(const membership::Worker&) { return {}; }
  WorkerState StateOf(const std::string& name) const { return table_.workers().at(name).state(); }
  std::vector<std::string> Reserved() const {
    std::vector<std::string> names;
    for (const membership::Worker* worker : table_.Reserved(kKey, config::DeviceKind::kCpu))
      names.push_back(worker->hello.worker);
    return names;
  }

  inline static const control::JobKey kKey{"j", Generation(1)};
  Outbox outbox_;
  WorkerTable table_{{}, {}, absl::Seconds(1), &outbox_};
  std::int64_t last_session_ = 0;
};

TEST_F(WorkerTableTest, ReservedWorkersThatGetNoRankAreReleased) {
  table_.Reserve({"w0", "w1"}, kKey);
  EXPECT_THAT(Reserved(), ElementsAre("w0", "w1"));
  table_.Bind("w0", kKey, Rank(0));
  EXPECT_THAT(Reserved(), ElementsAre("w1"));
  table_.ReleaseReserved(kKey);
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
  EXPECT_FALSE(table_.Release("w0", {"another", kKey.generation}));
  EXPECT_TRUE(table_.Release("w0", kKey));
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(WorkerTableTest, WorkerThatIsDrainedWhileThePlanIsMadeGetsNoRank) {
  table_.Reserve({"w0", "w1", "w2"}, kKey);
  ASSERT_TRUE(table_.members().SetDrained("w1", true).ok());
  table_.members().SetLeaving(table_.workers().at("w2").session);
  EXPECT_THAT(Reserved(), ElementsAre("w0"));
  table_.ReleaseReserved(kKey);
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(WorkerTableTest, AbsenceKeepsTheHoldAndLossEndsIt) {
  table_.Reserve({"w0"}, kKey);
  const auto away = table_.Detach(table_.workers().at("w0").session, "its stream ended", {});
  ASSERT_TRUE(away.has_value());
  EXPECT_TRUE(away->away);
  EXPECT_EQ(outbox_.workers_lost, 0);
  EXPECT_THAT(Reserved(), ElementsAre());
  const auto losses = table_.Expire({.steady = timeouts::kRedial}, NobodyVouches);
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].hold->key, kKey);
  EXPECT_EQ(outbox_.workers_lost, 1);
  Attach("w0");
  EXPECT_THAT(Reserved(), ElementsAre());
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(WorkerTableTest, WorkerThatComesBackWhileThePlanIsMadeIsStillReserved) {
  table_.Reserve({"w0"}, kKey);
  table_.Detach(table_.workers().at("w0").session, "its stream ended", {});
  Attach("w0");
  EXPECT_THAT(Reserved(), ElementsAre("w0"));
}

TEST_F(WorkerTableTest, CommandsGoToWorkersThatAreAttached) {
  outbox_.effects.clear();
  table_.Send("w0", control::Start{kKey});
  table_.Send("nobody", control::Start{kKey});
  EXPECT_EQ(outbox_.effects.size(), 1u);
  table_.Detach(table_.workers().at("w1").session, "its stream ended", {});
  outbox_.effects.clear();
  table_.Send("w1", control::Start{kKey});
  EXPECT_TRUE(outbox_.effects.empty());
}

}  // namespace
}  // namespace takt::job
