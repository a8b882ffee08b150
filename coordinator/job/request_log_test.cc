// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/request_log.h"

#include <memory>

#include "common/base/status.h"
#include "coordinator/store/memory_store.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

class RequestLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<store::Store> store_ = store::NewMemoryStore();
  RequestLog log_{store_.get()};
};

TEST_F(RequestLogTest, RequestIsFoundInItsBatchAndAfterItsCommit) {
  log_.Add("CancelJob", "r", store::JobRecord{.name = "j", .reason = "as answered"});
  EXPECT_EQ(log_.Find("CancelJob", "r", "j").value()->job->reason, "as answered");
  ASSERT_TRUE(store_->Commit({.requests = log_.Take()}).ok());
  EXPECT_TRUE(log_.Take().empty());
  EXPECT_EQ(log_.Find("CancelJob", "r", "j").value()->job->reason, "as answered");
}

TEST_F(RequestLogTest, SameIdOfAnotherMethodIsAnotherRequest) {
  log_.Add("CancelJob", "r", store::JobRecord{.name = "j"});
  EXPECT_FALSE(log_.Find("PauseJob", "r", "j").value().has_value());
}

TEST_F(RequestLogTest, RequestWithoutAnIdIsNeverFound) {
  log_.Add("CancelJob", "", store::JobRecord{.name = "j"});
  EXPECT_TRUE(log_.Take().empty());
  EXPECT_FALSE(log_.Find("CancelJob", "", "j").value().has_value());
}

TEST_F(RequestLogTest, IdOfAnotherJobIsRefused) {
  log_.Add("CancelJob", "r", store::JobRecord{.name = "j"});
  const absl::Status status = log_.Find("CancelJob", "r", "k").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(FieldErrorsOf(status)[0].rule, "was used for job j, not k");
}

}  // namespace
}  // namespace takt::job
