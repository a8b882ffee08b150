// SPDX-License-Identifier: Apache-2.0
// Tests errors and hangs at every call, and aborts at every stage.
#include "worker/transport/nccl/communicators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/base/status.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/transport/nccl/nccl_testing.h"
#include "worker/transport/nccl/stream_watch.h"

namespace takt::transport::nccl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Call = FakeNccl::Call;

// One device's side of a pair, with a stream and memory.
class Side {
 public:
  explicit Side(int rank, CommunicatorsOptions options = {}) : rank_(rank) {
    options.api = &FakeNccl::api();
    options.device = rank;
    options.poll_interval = absl::Milliseconds(1);
    options.on_aborted = [this](const absl::Status& reason, bool stuck) {
      absl::MutexLock lock(&mutex_);
      reason_ = reason;
      stuck_ = stuck;
      ended_ = true;
    };
    communicators_ = std::make_unique<Communicators>(std::move(options));
  }

  // Opens, and passes the first message from rank 0 to rank 1.
  absl::Status Connect(const UniqueId& id) {
    ASSIGN_OR_RETURN(pair_, communicators_->Open({.name = "pair", .rank = rank_, .id = id}));
    return Pass(/*first=*/true);
  }
  absl::Status Pass(bool first = false) {
    const Api& api = FakeNccl::api();
    return communicators_->Give(
        *pair_, *backend_->stream(),
        [&](Comm comm, NativeStream stream) {
          return rank_ == 0 ? api.send(buffer_.data(), buffer_.bytes(), 1, comm, stream)
                            : api.recv(buffer_.data(), buffer_.bytes(), 0, comm, stream);
        },
        first);
  }
  absl::Status Synchronize() { return backend_->Synchronize(); }
  void Abort() { communicators_->Abort(absl::AbortedError("told to")); }
  absl::Status status() const { return communicators_->status(); }
  void Close() {
    if (pair_ != nullptr) Communicators::Forget(*pair_);
    communicators_.reset();
  }

  // Says how the communicators ended: why, and whether they are stuck.
  std::pair<absl::Status, bool> AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return {reason_, stuck_};
  }
  bool ended() {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }

 private:
  const int rank_;
  const std::unique_ptr<backend::BackendFactory> device_ = backend::CreateDiscreteBackends({});
  const std::unique_ptr<backend::MemoryBackend> backend_ =
      device_->CreateMemory(backend::StreamKind::kTransfer).value();
  const backend::Buffer buffer_ = backend_->Allocate(64, MemoryKind::kMessages).value();
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false, stuck_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Communicators> communicators_;
  Communicator* pair_ = nullptr;
};

UniqueId NewId() {
  UniqueId id;
  EXPECT_EQ(FakeNccl::api().unique_id(&id), kSuccess);
  return id;
}

void ConnectBoth(Side& a, Side& b) {
  const UniqueId id = NewId();
  AtOnce({[&] { EXPECT_TRUE(a.Connect(id).ok()); }, [&] { EXPECT_TRUE(b.Connect(id).ok()); }});
}

TEST(Communicators, CloseInOrder) {
  FakeNccl nccl;
  Side a(0), b(1);
  ConnectBoth(a, b);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(a.Pass().ok());
    EXPECT_TRUE(b.Pass().ok());
  }
  EXPECT_TRUE(a.Synchronize().ok());
  EXPECT_TRUE(b.Synchronize().ok());
  AtOnce({[&] { a.Close(); }, [&] { b.Close(); }});
  EXPECT_FALSE(a.ended());
  EXPECT_EQ(nccl.num_open(), 0);
  EXPECT_EQ(nccl.num_aborted(), 0);
  EXPECT_THAT(nccl.misuse(), IsEmpty());
}

TEST(Communicators, AnErrorOfAnyCallEndsAllAndNamesIt) {
  const std::map<Call, std::string> names = {
      {Call::kInit, "ncclCommInitRankConfig"},
      {Call::kPoll, "ncclCommInitRankConfig"},
      {Call::kSend, "ncclSend"},
      {Call::kGroupEnd, "ncclGroupEnd"},
  };
  for (const auto& [call, name] : names) {
    SCOPED_TRACE(name);
    FakeNccl nccl;
    Side a(0), b(1);
    nccl.Inject({.device = 0, .call = call, .result = kRemoteError});
    const UniqueId id = NewId();
    absl::Status failed, other;
    AtOnce({[&] {
              failed = a.Connect(id);
              b.Abort();  // as the control plane does
            },
            [&] { other = b.Connect(id); }});
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr(name));
    EXPECT_THAT(std::string(failed.message()), HasSubstr("pair"));
    EXPECT_EQ(a.AwaitEnd(), std::pair(failed, false));
    EXPECT_EQ(a.status(), failed);
    EXPECT_EQ(other.code(), absl::StatusCode::kAborted) << other;
    a.Close();
    b.Close();
    EXPECT_EQ(nccl.num_open(), 0);
    EXPECT_THAT(nccl.misuse(), IsEmpty());
  }
}

TEST(Communicators, AnErrorAtTheEndAborts) {
  for (const Call call : {Call::kFinalize, Call::kDestroy}) {
    FakeNccl nccl;
    Side a(0), b(1);
    ConnectBoth(a, b);
    EXPECT_TRUE(a.Synchronize().ok() && b.Synchronize().ok());
    nccl.Inject({.device = 0, .call = call, .result = kInternalError});
    AtOnce({[&] { a.Close(); },
            [&] {
              if (call == Call::kFinalize) b.Abort();  // else it would wait for the other's part
              b.Close();
            }});
    const auto [reason, stuck] = a.AwaitEnd();
    EXPECT_EQ(reason.code(), absl::StatusCode::kInternal) << reason;
    EXPECT_FALSE(stuck);
  }
}

TEST(Communicators, AnErrorThatNobodyWaitsForIsFound) {
  FakeNccl nccl;
  Side a(0), b(1);
  ConnectBoth(a, b);
  EXPECT_TRUE(b.Pass().ok());  // the message never comes
  nccl.Break(1, kRemoteError);
  const auto [reason, stuck] = b.AwaitEnd();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_FALSE(stuck);
  EXPECT_TRUE(b.Synchronize().ok()) << "the abort ends what the stream was at";
  EXPECT_FALSE(b.status().ok()) << "and its work does not count";
  EXPECT_FALSE(b.Pass().ok());
  a.Abort();
}

TEST(Communicators, WorkThatAStreamDoesNotEndIsFound) {
  FakeNccl nccl;
  Side a(0), b(1, {.operation_timeout = absl::Milliseconds(20)});
  ConnectBoth(a, b);
  EXPECT_TRUE(b.Pass().ok());
  const auto [reason, stuck] = b.AwaitEnd();
  EXPECT_EQ(reason.code(), absl::StatusCode::kDeadlineExceeded) << reason;
  EXPECT_THAT(std::string(reason.message()), HasSubstr("pair"));
  EXPECT_TRUE(b.Synchronize().ok());
  a.Abort();
}

TEST(Communicators, APeerThatDoesNotComeIsWaitedForNoLongerThanAgreed) {
  FakeNccl nccl;
  Side a(0, {.connect_timeout = absl::Milliseconds(20)});
  EXPECT_EQ(a.Connect(NewId()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(a.AwaitEnd().second);
}

TEST(Communicators, AnAbortEndsWhateverIsWaitedFor) {
  FakeNccl nccl;
  Side a(0);
  absl::Status status;
  AtOnce({[&] { status = a.Connect(NewId()); }, [&] { a.Abort(); }});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  a.Abort();  // again: nothing happens
  EXPECT_EQ(a.Connect(NewId()).code(), absl::StatusCode::kAborted);
}

TEST(Communicators, WithNothingOpenAnAbortIsNobodysBusiness) {
  FakeNccl nccl;
  Side a(0);
  a.Abort();
  a.Close();
  EXPECT_FALSE(a.ended());
}

TEST(Communicators, AnAbortThatHangsIsToldAtItsDeadline) {
  FakeNccl nccl;
  Side a(0, {.abort_timeout = absl::Milliseconds(20)}), b(1);
  ConnectBoth(a, b);
  EXPECT_TRUE(a.Synchronize().ok() && b.Synchronize().ok());
  nccl.Inject({.device = 0, .call = Call::kAbort, .hangs = true});
  a.Abort();
  const auto [reason, stuck] = a.AwaitEnd();
  EXPECT_EQ(reason.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(stuck);
  a.Close();  // does not wait for the thread that hangs
  b.Abort();
  nccl.Release();
}

// NCCL requires that no thread is inside when it aborts. A call that never returns ends that way
// too.
TEST(Communicators, ACallThatHangsIsToldAtItsDeadline) {
  for (const Call call : {Call::kGroupEnd, Call::kPoll, Call::kSend}) {
    FakeNccl nccl;
    Side a(0, {.abort_timeout = absl::Milliseconds(20)}), b(1);
    ConnectBoth(a, b);
    EXPECT_TRUE(a.Synchronize().ok() && b.Synchronize().ok());
    nccl.Inject({.device = 0, .call = call, .hangs = true});
    std::thread lane([&] { EXPECT_FALSE(a.Pass().ok()); });
    while (!nccl.hanging()) std::this_thread::yield();
    a.Abort();
    EXPECT_TRUE(a.AwaitEnd().second);
    EXPECT_EQ(nccl.num_aborted(), 0);
    b.Abort();
    nccl.Release();
    lane.join();
    EXPECT_THAT(nccl.misuse(), IsEmpty());
  }
}

TEST(StreamWatch, CountsFromTheTimeThatTheWorkBegan) {
  absl::Mutex mutex;
  bool earlier_done = false, work_done = false;
  backend::TaskStream stream(/*lazy=*/false);
  const auto wait_for = [&](bool& flag) {
    stream.Push([&] {
      absl::MutexLock lock(&mutex);
      mutex.Await(absl::Condition(&flag));
      return absl::OkStatus();
    });
  };
  const auto set = [&](bool& flag) {
    absl::MutexLock lock(&mutex);
    flag = true;
  };
  StreamWatch watch(absl::Nanoseconds(10));
  wait_for(earlier_done);
  ASSERT_TRUE(watch.Begin(stream).ok());
  wait_for(work_done);
  ASSERT_TRUE(watch.End(stream).ok());
  EXPECT_TRUE(watch.Check(100).ok()) << "it has not begun";
  set(earlier_done);
  // The time begins when the stream gets there: 10 ns after the first check that sees it are too
  // long.
  absl::Status late;
  std::int64_t now = 100;
  for (; late.ok(); ++now) late = watch.Check(now);
  EXPECT_GE(now - 1, 111);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  set(work_done);
  EXPECT_TRUE(stream.Drain().ok());
  EXPECT_TRUE(watch.Check(now + 1000).ok()) << "it is done";
}

}  // namespace
}  // namespace takt::transport::nccl
