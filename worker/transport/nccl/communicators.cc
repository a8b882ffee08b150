// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/nccl/communicators.h"

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/transport/nccl/stream_watch.h"
#include "worker/transport/wake_word.h"

namespace takt::transport::nccl {
namespace {

enum class Phase : std::uint8_t { kRunning, kClosed, kAborting, kAborted, kStuck };

// NCCL reports an error only when it is asked.
constexpr absl::Duration kFirstLook = absl::Microseconds(10), kLongestLook = absl::Milliseconds(1);

absl::StatusCode CodeOf(Result result) {
  return result == kRemoteError || result == kSystemError ? absl::StatusCode::kUnavailable
                                                          : absl::StatusCode::kInternal;
}

}  // namespace

class Communicator {
 public:
  Communicator(std::string name_in, absl::Duration timeout)
      : name(std::move(name_in)), watch(timeout) {}
  const std::string name;
  Comm comm = nullptr;  // null once destroyed; belongs to the thread inside NCCL
  StreamWatch watch;
};

struct Communicators::State {
  explicit State(CommunicatorsOptions options_in)
      : options(std::move(options_in)), api(*options.api) {}

  absl::Status StatusLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return phase == Phase::kRunning ? absl::OkStatus() : reason;
  }
  bool OverLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return phase != Phase::kRunning; }

  absl::Status status() {
    absl::MutexLock lock(&mutex);
    return StatusLocked();
  }

  // Returns the resulting status, for the caller to return.
  absl::Status Fail(const absl::Status& why) {
    absl::MutexLock lock(&mutex);
    if (phase == Phase::kRunning) {
      phase = Phase::kAborting;
      reason = why;
    }
    return reason;
  }

  // Fails all communicators because a call into NCCL failed.
  absl::Status FailCall(const Communicator& c, const char* call, Result result) {
    const std::string said = api.last_error();
    return Fail(
        {CodeOf(result), absl::StrCat("NCCL, ", c.name, ": ", call, ": ", api.error_string(result),
                                      said.empty() ? "" : ": ", said)});
  }

  // Waits for the right to call NCCL, which takes one caller at a time. Once the communicators are
  // over, no thread gets it.
  absl::Status Enter(absl::Time deadline) {
    absl::MutexLock lock(&mutex);
    const auto free = [this]()
                          ABSL_SHARED_LOCKS_REQUIRED(mutex) { return !inside || OverLocked(); };
    if (!mutex.AwaitWithDeadline(absl::Condition(&free), deadline)) {
      phase = Phase::kAborting;
      reason = absl::DeadlineExceededError("a call into NCCL does not return");
    }
    if (phase == Phase::kRunning) inside = true;
    return StatusLocked();
  }
  bool TryEnter() {
    absl::MutexLock lock(&mutex);
    if (inside || OverLocked()) return false;
    return inside = true;
  }
  void Leave() {
    absl::MutexLock lock(&mutex);
    inside = false;
  }

  // As Api::async_error. The caller is inside.
  Result Ask(const Communicator& c) const {
    Result state = kSuccess;
    const Result asked = api.async_error(c.comm, &state);
    return asked == kSuccess ? state : asked;
  }

  // Waits a moment, which grows with each call, or until it is over.
  absl::Status Pause(absl::Duration& moment) {
    absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(this, &State::OverLocked), moment);
    moment = std::min(2 * moment, kLongestLook);
    return StatusLocked();
  }

  // Waits until what was begun in the background is done. The caller is inside and stays so.
  absl::Status AwaitInside(const Communicator& c, const char* call, absl::Time deadline) {
    for (absl::Duration moment = kFirstLook;;) {
      const Result state = Ask(c);
      if (state == kSuccess) return absl::OkStatus();
      if (state != kInProgress) return FailCall(c, call, state);
      if (absl::Now() >= deadline) return FailLate(c, call);
      RETURN_IF_ERROR(Pause(moment));
    }
  }
  // Does the same for calls that take as long as other ranks do: other threads may call in between.
  absl::Status Await(const Communicator& c, const char* call, absl::Time deadline) {
    for (absl::Duration moment = kFirstLook;;) {
      RETURN_IF_ERROR(Enter(deadline));
      const Result state = Ask(c);
      Leave();
      if (state == kSuccess) return absl::OkStatus();
      if (state != kInProgress) return FailCall(c, call, state);
      if (absl::Now() >= deadline) return FailLate(c, call);
      RETURN_IF_ERROR(Pause(moment));
    }
  }
  absl::Status FailLate(const Communicator& c, const char* call) {
    return Fail(absl::DeadlineExceededError(
        absl::StrCat("NCCL, ", c.name, ": ", call, " did not end in time")));
  }

  // Makes a call that may go on in the background.
  absl::Status Call(const Communicator& c, const char* name, Result (*call)(Comm),
                    absl::Time deadline) {
    RETURN_IF_ERROR(Enter(deadline));
    const Result result = call(c.comm);
    Leave();
    return result == kSuccess || result == kInProgress ? absl::OkStatus()
                                                       : FailCall(c, name, result);
  }

  bool IsStuck() {
    absl::MutexLock lock(&mutex);
    return phase == Phase::kStuck;
  }

  std::vector<Communicator*> All() {
    absl::MutexLock lock(&mutex);
    std::vector<Communicator*> all;
    for (const auto& c : communicators) all.push_back(c.get());
    return all;
  }

  const CommunicatorsOptions options;
  const Api& api;
  absl::Mutex mutex;
  Phase phase ABSL_GUARDED_BY(mutex) = Phase::kRunning;
  absl::Status reason ABSL_GUARDED_BY(mutex) = absl::CancelledError("NCCL was closed");
  bool inside ABSL_GUARDED_BY(mutex) = false;  // a thread is inside NCCL
  std::vector<std::unique_ptr<Communicator>> communicators ABSL_GUARDED_BY(mutex);
  std::size_t aborts_left ABSL_GUARDED_BY(mutex) = 0;
};

namespace {

// Looks for errors, and for work that takes too long, while no other thread does.
template <typename State>
void Poll(State& state) {
  pthread_setname_np(pthread_self(), "takt-nccl-poll");
  for (;;) {
    {
      absl::MutexLock lock(&state.mutex);
      if (state.mutex.AwaitWithTimeout(absl::Condition(&state, &State::OverLocked),
                                       state.options.poll_interval))
        return;
    }
    for (Communicator* const c : state.All()) {
      // A thread that is inside looks for itself.
      if (state.TryEnter()) {
        const Result result = c->comm == nullptr ? kSuccess : state.Ask(*c);
        state.Leave();
        if (result != kSuccess && result != kInProgress)
          state.FailCall(*c, "an operation", result).IgnoreError();
      }
      const absl::Status late = c->watch.Check(MonotonicNanos());
      if (!late.ok()) state.Fail(Annotate(late, absl::StrCat("NCCL, ", c->name))).IgnoreError();
    }
  }
}

// Makes every abort on a thread of its own: one that hangs must not keep the others' kernels
// running.
template <typename State>
void AbortAll(const std::shared_ptr<State>& state, const std::vector<Communicator*>& all) {
  for (Communicator* const c : all) {
    std::thread([state, c] {
      pthread_setname_np(pthread_self(), "takt-nccl-abort");
      if (c->comm != nullptr) state->api.abort(c->comm);
      absl::MutexLock lock(&state->mutex);
      --state->aborts_left;
    }).detach();
  }
}

// Runs the part of the diagram that begins with [aborting].
template <typename State>
void End(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "takt-nccl-end");
  const auto nobody = [&]() ABSL_SHARED_LOCKS_REQUIRED(state->mutex) { return !state->inside; };
  const auto aborted = [&]() ABSL_SHARED_LOCKS_REQUIRED(state->mutex) {
    return state->aborts_left == 0;
  };
  absl::Status reason;
  bool stuck = true;
  {
    absl::MutexLock lock(&state->mutex);
    state->mutex.Await(absl::Condition(state.get(), &State::OverLocked));
    if (state->phase == Phase::kClosed) return;
    reason = state->reason;
    const absl::Time deadline = absl::Now() + state->options.abort_timeout;
    // NCCL requires that no thread is inside when it aborts.
    if (state->mutex.AwaitWithDeadline(absl::Condition(&nobody), deadline)) {
      std::vector<Communicator*> all;
      for (const auto& c : state->communicators) all.push_back(c.get());
      state->aborts_left = all.size();
      AbortAll(state, all);
      stuck = !state->mutex.AwaitWithDeadline(absl::Condition(&aborted), deadline);
    }
    state->phase = stuck ? Phase::kStuck : Phase::kAborted;
    if (state->communicators.empty()) return;
  }
  Log(stuck ? LogLevel::kError : LogLevel::kWarning,
      stuck ? "NCCL does not let itself be aborted" : "NCCL was aborted",
      {{"reason", std::string(reason.message())}});
  if (state->options.on_aborted) state->options.on_aborted(reason, stuck);
}

}  // namespace

Communicators::Communicators(CommunicatorsOptions options)
    : state_(std::make_shared<State>(std::move(options))),
      poller_([state = state_] { Poll(*state); }),
      ender_([state = state_] { End(state); }) {}

Communicators::~Communicators() {
  Close();
  ender_.join();
  if (state_->IsStuck()) {
    poller_.detach();  // it may be the thread that is stuck
  } else {
    poller_.join();
  }
}

// All are finalised before the first is waited for, because two ranks may have them in different
// orders.
void Communicators::Close() {
  State& state = *state_;
  const std::vector<Communicator*> all = state.All();
  const absl::Time deadline = absl::Now() + state.options.close_timeout;
  const auto each = [&](const std::function<absl::Status(Communicator&)>& f) {
    for (Communicator* const c : all) {
      const absl::Status done = c->comm == nullptr ? absl::OkStatus() : f(*c);
      if (!done.ok()) return state.Fail(done);
    }
    return absl::OkStatus();
  };
  absl::Status closed = each([&](Communicator& c) {
    c.watch.Forget();
    return state.Call(c, "ncclCommFinalize", state.api.finalize, deadline);
  });
  if (closed.ok())
    closed = each([&](Communicator& c) { return state.Await(c, "ncclCommFinalize", deadline); });
  if (closed.ok()) {
    closed = each([&](Communicator& c) {
      RETURN_IF_ERROR(state.Enter(deadline));
      const Result result = state.api.destroy(std::exchange(c.comm, nullptr));
      state.Leave();
      return result == kSuccess ? absl::OkStatus() : state.FailCall(c, "ncclCommDestroy", result);
    });
  }
  absl::MutexLock lock(&state.mutex);
  if (state.phase == Phase::kRunning) state.phase = Phase::kClosed;
}

absl::StatusOr<Communicator*> Communicators::Open(const OpenOptions& options) {
  State& state = *state_;
  const absl::Time deadline = absl::Now() + state.options.connect_timeout;
  RETURN_IF_ERROR(state.Enter(deadline));
  auto made = std::make_unique<Communicator>(options.name, state.options.operation_timeout);
  Communicator& communicator = *made;
  const Result result = state.api.init({.device = state.options.device,
                                        .num_ranks = options.num_ranks,
                                        .rank = options.rank,
                                        .id = options.id,
                                        .max_ctas = options.max_ctas},
                                       &communicator.comm);
  {
    absl::MutexLock lock(&state.mutex);
    state.communicators.push_back(std::move(made));
  }
  state.Leave();
  if (result != kSuccess && result != kInProgress)
    return state.FailCall(communicator, "ncclCommInitRankConfig", result);
  RETURN_IF_ERROR(state.Await(communicator, "ncclCommInitRankConfig", deadline));
  return &communicator;
}

absl::Status Communicators::Give(Communicator& communicator, backend::Stream& stream,
                                 absl::FunctionRef<Result(Comm, NativeStream)> calls, bool first) {
  State& state = *state_;
  const absl::Time deadline =
      absl::Now() + (first ? state.options.connect_timeout : state.options.operation_timeout);
  const auto give = [&]() -> absl::Status {
    RETURN_IF_ERROR(communicator.watch.Begin(stream));
    if (const Result result = state.api.group_start(); result != kSuccess)
      return state.FailCall(communicator, "ncclGroupStart", result);
    const Result called = calls(communicator.comm, stream.native());
    // A group that began must end, whatever the calls returned.
    const Result result = state.api.group_end();
    if (called != kSuccess && called != kInProgress)
      return state.FailCall(communicator, "ncclSend or ncclRecv", called);
    if (result != kSuccess && result != kInProgress)
      return state.FailCall(communicator, "ncclGroupEnd", result);
    RETURN_IF_ERROR(state.AwaitInside(communicator, "ncclGroupEnd", deadline));
    return communicator.watch.End(stream);
  };
  // A thread that waits for room must not keep others from NCCL.
  constexpr std::int64_t kLaunches = 3;  // the message, and where its watch begins and ends
  if (const absl::Status room = stream.MakeRoom(kLaunches); !room.ok()) return state.Fail(room);
  RETURN_IF_ERROR(state.Enter(deadline));
  const absl::Status given = give();
  state.Leave();
  return given.ok() ? given : state.Fail(given);
}

void Communicators::Forget(Communicator& communicator) { communicator.watch.Forget(); }

void Communicators::Abort(const absl::Status& reason) { state_->Fail(reason).IgnoreError(); }

absl::Status Communicators::status() const { return state_->status(); }

absl::Status Communicators::poisoned() const {
  return state_->All().empty() ? absl::OkStatus() : state_->status();
}

}  // namespace takt::transport::nccl
