// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_lifecycle.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace takt::session {
namespace {

constexpr char kAskedToLeave[] = "asked to leave";

std::string WhyANewLife(const absl::Status& poisoned) {
  return absl::StrCat("begins anew, as its device is of no more use to this process: ",
                      std::string(poisoned.message()));
}

}  // namespace

control::JobUpdate RankLifecycle::Update(control::Phase phase, const absl::Status& error,
                                         const control::RankStatus& status) const {
  return control::JobUpdate{.key = key_,
                            .rank = rank_,
                            .phase = phase,
                            .failure = control::FailureOf(error),
                            .status = status};
}

Effects RankLifecycle::End(control::Phase phase, const absl::Status& error,
                           const control::RankStatus& status) {
  state_ = State::kEnded;
  end_ = Update(phase, error, status);
  return {EffectSend{*end_}};
}

Effects RankLifecycle::Build(const control::JobKey& key, Rank rank) {
  if (!poisoned_.ok()) return BecomeIdle();
  state_ = State::kPreparing;
  key_ = key;
  rank_ = rank;
  resumed_ = {};
  end_.reset();
  next_.reset();
  gone_ = false;
  acknowledged_ = false;
  teardown_deadline_ = absl::InfiniteDuration();
  return {EffectBuild{key}};
}

Effects RankLifecycle::Prepare(const control::JobKey& key, Rank rank) {
  if (Holds(key)) return Attached();  // sent twice: it gets the same answer as the first time
  const bool ending = state_ == State::kStopping || state_ == State::kEnded;
  if (leaving_ || (state_ != State::kIdle && !ending)) {
    const std::string why = leaving_ ? "the worker is leaving"
                                     : absl::StrCat("the worker holds job ", key_.job,
                                                    " generation ", key_.generation.value());
    return {EffectSend{
        control::JobUpdate{.key = key,
                           .rank = rank,
                           .phase = control::Phase::kRefused,
                           .failure = control::FailureOf(absl::FailedPreconditionError(why))}}};
  }
  if (gone_) return Build(key, rank);
  next_ = {key, rank};
  return {};
}

Effects RankLifecycle::Start(const control::JobKey& key) {
  if (!Holds(key) || state_ != State::kAdmitted) return {};
  state_ = State::kRunning;
  return {EffectRun{}, EffectHeartbeat{}};
}

Effects RankLifecycle::Halt(const control::JobKey& key, bool in_memory) const {
  const bool runs_or_will =
      state_ == State::kPreparing || state_ == State::kAdmitted || state_ == State::kRunning;
  if (!Holds(key) || !runs_or_will) return {};
  return {EffectHalt{.in_memory = in_memory}};
}

Effects RankLifecycle::Abort(const control::JobKey& key, const std::string& reason,
                             const control::RankStatus& status, absl::Duration now) {
  if (next_.has_value() && next_->first == key) next_.reset();
  if (!Holds(key)) {
    return {EffectSend{
        control::JobUpdate{.key = key,
                           .phase = control::Phase::kAborted,
                           .failure = control::FailureOf(absl::CancelledError(reason))}}};
  }
  switch (state_) {
    case State::kPreparing:
    case State::kAdmitted:
    case State::kRunning:
    case State::kFlushing:
      state_ = State::kStopping;
      stop_reason_ = absl::CancelledError(reason);
      stop_status_ = status;
      teardown_deadline_ = now + kTeardownTimeout;
      return {EffectStop{stop_reason_}};
    case State::kEnded:
      return Attached();
    case State::kIdle:
    case State::kStopping:
      return {};
  }
  return {};
}

Effects RankLifecycle::Acknowledge(const control::JobKey& key) {
  if (!Holds(key) || state_ != State::kEnded) return {};
  acknowledged_ = true;
  return gone_ ? BecomeIdle() : Effects();
}

Effects RankLifecycle::BecomeIdle() {
  state_ = State::kIdle;
  if (leaving_) return {EffectExit{kExitLeft, kAskedToLeave}};
  if (poisoned_.ok()) return {};
  return {EffectExit{kExitPoisoned, WhyANewLife(poisoned_)}};
}

Effects RankLifecycle::Attached() const {
  Effects effects;
  if (leaving_) effects.push_back(EffectLeaving{kAskedToLeave});
  if (!poisoned_.ok()) effects.push_back(EffectLeaving{WhyANewLife(poisoned_)});
  if (state_ == State::kAdmitted) {
    control::JobUpdate update =
        Update(control::Phase::kAdmitted, absl::OkStatus(), {.last_step = resumed_.step});
    update.resumed = resumed_;
    effects.push_back(EffectSend{std::move(update)});
  }
  if (state_ == State::kEnded) effects.push_back(EffectSend{*end_});
  return effects;
}

// Without a coordinator nothing can halt the job any more.
Effects RankLifecycle::Detached(const control::RankStatus& status, absl::Duration now) {
  return leaving_ && !leaving_now_ ? LeaveNow(status, now) : Effects();
}

Effects RankLifecycle::Built(const absl::StatusOr<control::Resumed>& resumed, absl::Duration now) {
  if (state_ != State::kPreparing) return {};
  if (resumed.ok()) {
    state_ = State::kAdmitted;
    resumed_ = *resumed;
    return Attached();
  }
  teardown_deadline_ = now + kTeardownTimeout;
  Effects effects = End(control::Phase::kRefused, resumed.status(), {});
  effects.push_back(EffectRelease{});
  return effects;
}

Effects RankLifecycle::RunEnded(const absl::StatusOr<RunEnd>& end,
                                const control::RankStatus& rank_status, absl::Duration now) {
  if (state_ != State::kRunning) return {};
  if (end.ok()) {
    state_ = State::kFlushing;
    run_end_ = *end == RunEnd::kHalted ? control::Phase::kHalted : control::Phase::kFinished;
    return {};
  }
  teardown_deadline_ = now + kTeardownTimeout;
  Effects effects = End(control::Phase::kFailed, end.status(), rank_status);
  effects.push_back(EffectRelease{});
  return effects;
}

Effects RankLifecycle::Flushed(const control::RankStatus& status, absl::Duration now) {
  if (state_ != State::kFlushing) return {};
  teardown_deadline_ = now + kTeardownTimeout;
  Effects effects = End(run_end_, absl::OkStatus(), status);
  effects.push_back(EffectRelease{});
  return effects;
}

Effects RankLifecycle::FirstStepDone() const {
  if (state_ != State::kRunning) return {};
  return {EffectHeartbeat{}};
}

Effects RankLifecycle::Poisoned(const absl::Status& reason) {
  poisoned_ = reason;
  return {EffectLeaving{WhyANewLife(reason)}};
}

Effects RankLifecycle::Gone() {
  gone_ = true;
  teardown_deadline_ = absl::InfiniteDuration();
  if (leaving_now_) return {EffectExit{kExitLeft, kAskedToLeave}};
  Effects effects;
  if (state_ == State::kStopping)
    effects = End(control::Phase::kAborted, stop_reason_, stop_status_);
  if (next_.has_value()) {
    const auto [key, rank] = *next_;
    for (Effect& effect : Build(key, rank)) effects.push_back(std::move(effect));
  } else if (acknowledged_) {
    return BecomeIdle();
  }
  return effects;
}

Effects RankLifecycle::Leave(const control::RankStatus& status, absl::Duration now) {
  if (leaving_now_) return {};
  if (leaving_) return LeaveNow(status, now);
  leaving_ = true;
  next_.reset();
  if (state_ == State::kIdle) return {EffectExit{kExitLeft, kAskedToLeave}};
  leave_deadline_ = now + leave_timeout_;
  return {EffectLeaving{kAskedToLeave}};
}

Effects RankLifecycle::LeaveNow(const control::RankStatus& status, absl::Duration now) {
  leaving_now_ = true;
  leave_deadline_ = absl::InfiniteDuration();
  if (gone_) return {EffectExit{kExitLeft, kAskedToLeave}};
  if (state_ == State::kStopping || state_ == State::kEnded) return {};  // Gone follows
  const absl::Status reason = absl::UnavailableError("the worker was asked to leave (SIGTERM)");
  teardown_deadline_ = now + kTeardownTimeout;
  Effects effects = End(control::Phase::kFailed, reason, status);
  effects.push_back(EffectStop{reason});
  return effects;
}

Effects RankLifecycle::Tick(absl::Duration now) const {
  if (now < teardown_deadline_) return {};
  return {EffectExit{kExitStuck, absl::StrCat("teardown of job ", key_.job, " generation ",
                                              key_.generation.value(), " did not end within ",
                                              absl::FormatDuration(kTeardownTimeout))}};
}

}  // namespace takt::session
