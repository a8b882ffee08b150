// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/answer_checker.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace takt::simulation {

using store::JobState;

namespace {

bool HaltsFor(const DurableJob& job, JobState next) { return job.halt && job.halt->next == next; }

bool EndsForGood(const DurableJob& job) {
  if (store::HasEnded(job.state)) return true;
  return job.stop && store::HasEnded(job.stop->state);
}

}  // namespace

const char* Name(Method method) {
  constexpr const char* kNames[] = {"submit", "cancel", "pause",   "resume",
                                    "delete", "drain",  "undrain", "adopt"};
  return kNames[static_cast<int>(method)];
}

void AnswerChecker::Expect(bool holds, const Request& request, const std::string& what) {
  if (holds) return;
  oracle_.Violate(
      "answers fit what is durable",
      absl::StrCat(Name(request.method), " ", request.target, " (", request.id, "): ", what));
}

void AnswerChecker::Answered(const Request& request, const absl::StatusOr<std::string>& job_id) {
  if (!job_id.ok()) return CheckRefused(request, job_id.status());
  const auto [before, first] = granted_.try_emplace(request.id, *job_id);
  if (first) return CheckGranted(request, *job_id);
  if (before->second == *job_id) return;
  oracle_.Violate(
      "a request has one effect",
      absl::StrCat(Name(request.method), " ", request.target, " (", request.id,
                   ") was answered with job ", before->second, ", then with job ", *job_id));
}

void AnswerChecker::CheckGranted(const Request& request, const std::string& job_id) {
  const DurableJob* const job = oracle_.Find(request.target);
  switch (request.method) {
    case Method::kSubmit:
      return Expect(oracle_.jobs().contains(job_id), request, "the job is not durable");
    case Method::kDelete:
      return Expect(job == nullptr, request, "the job is still there");
    case Method::kCancel:
      return Expect(job != nullptr && EndsForGood(*job), request, "the job goes on");
    case Method::kPause:
      return Expect(job != nullptr && (job->state == JobState::kPaused ||
                                       HaltsFor(*job, JobState::kPaused) || EndsForGood(*job)),
                    request, "the job goes on");
    case Method::kResume:
      return Expect(
          job != nullptr && job->state != JobState::kPaused && !HaltsFor(*job, JobState::kPaused),
          request, "the job is still paused");
    case Method::kAdopt:
      return Expect(job != nullptr, request, "the job is not durable");
    case Method::kDrain:
      return Expect(oracle_.drained().contains(request.target), request, "it is not drained");
    case Method::kUndrain:
      return Expect(!oracle_.drained().contains(request.target), request, "it is still drained");
  }
}

void AnswerChecker::CheckRefused(const Request& request, const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kAlreadyExists:
      // Nobody else submits jobs of this name, and the one before is deleted.
      oracle_.Violate("a request has one effect",
                      absl::StrCat(Name(request.method), " ", request.target, " (", request.id,
                                   "): ", std::string(error.message())));
      return;
    case absl::StatusCode::kNotFound: {
      const bool is_job = request.method != Method::kDrain && request.method != Method::kUndrain;
      return Expect(!is_job || oracle_.Find(request.target) == nullptr, request,
                    "the job is there, but was not found");
    }
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return;
    default:
      return Expect(false, request, error.ToString());
  }
}

}  // namespace takt::simulation
