// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/ipc/memory_lease.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace takt::transport::ipc {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60), kShort = absl::Milliseconds(30);

TEST(MemoryLease, ALenderWaitsUntilTheMemoryIsReturned) {
  const auto lender = Lender::Create("test").value();
  const auto borrower = Borrower::Attach(lender->announcement()).value();
  lender->Watch();
  EXPECT_FALSE(borrower->asked());
  std::atomic<bool> returned = false;
  std::thread helper([&] {
    borrower->Await([&] { return borrower->asked(); });
    returned = true;
    borrower->Return();
  });
  EXPECT_TRUE(lender->TakeBack(kLong));
  EXPECT_TRUE(returned);
  helper.join();
}

TEST(MemoryLease, ABorrowerIsWokenForItsOwnReasons) {
  const auto lender = Lender::Create("test").value();
  const auto borrower = Borrower::Attach(lender->announcement()).value();
  std::atomic<bool> ready = false;
  std::thread helper([&] { borrower->Await([&] { return ready.load(); }); });
  ready = true;
  borrower->Wake();
  helper.join();
}

TEST(MemoryLease, WhatNobodyBorrowedIsBackAtOnceAndNobodyMayBorrowIt) {
  const auto lender = Lender::Create("test").value();
  EXPECT_TRUE(lender->TakeBack(absl::ZeroDuration()));
  EXPECT_EQ(Borrower::Attach(lender->announcement()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(MemoryLease, TheEndOfABorrowerReturnsIt) {
  const auto lender = Lender::Create("test").value();
  Borrower::Attach(lender->announcement()).value().reset();
  EXPECT_TRUE(lender->TakeBack(absl::ZeroDuration()));
}

TEST(MemoryLease, ABorrowerThatDoesNotReturnItIsToldOfByTheTimeout) {
  const auto lender = Lender::Create("test").value();
  const auto borrower = Borrower::Attach(lender->announcement()).value();
  EXPECT_FALSE(lender->TakeBack(kShort));
}

TEST(MemoryLease, AKilledBorrowerHasReturnedIt) {
  const auto lender = Lender::Create("test").value();
  int attached[2];
  ASSERT_EQ(pipe(attached), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto borrower = Borrower::Attach(lender->announcement());
    const char told = borrower.ok() ? 1 : 0;
    if (write(attached[1], &told, 1) == 1) pause();
    _exit(1);
  }
  char told = 0;
  ASSERT_EQ(read(attached[0], &told, 1), 1);
  EXPECT_EQ(told, 1);
  lender->Watch();
  EXPECT_FALSE(lender->TakeBack(kShort));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  EXPECT_TRUE(lender->TakeBack(kLong));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(attached[0]);
  close(attached[1]);
}

TEST(MemoryLease, ABorrowerThatEndedBeforeItWasWatchedHasReturnedIt) {
  const auto lender = Lender::Create("test").value();
  const pid_t child = fork();
  if (child == 0) {
    const auto borrower = Borrower::Attach(lender->announcement());
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(lender->TakeBack(kShort));
}

TEST(MemoryLease, AnAnnouncementOfOtherMemoryIsRefused) {
  const auto lender = Lender::Create("test").value();
  std::string other = lender->announcement();
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_EQ(Borrower::Attach(other).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Borrower::Attach("nothing").ok());
  EXPECT_TRUE(lender->TakeBack(absl::ZeroDuration())) << "nobody has it";
}

}  // namespace
}  // namespace takt::transport::ipc
