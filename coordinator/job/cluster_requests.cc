// SPDX-License-Identifier: Apache-2.0
// Cluster: what users and operators ask for.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/job/cluster.h"

namespace takt::job {
namespace {

using store::JobRecord;
using store::JobState;

constexpr int kIdBytes = 8;

JobRecord JobAsBefore(const store::RequestRecord& request) {
  return request.job.value_or(JobRecord());
}

absl::Status NoSuchJob(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no job named ", name, "; `takt jobs` lists them"));
}

}  // namespace

template <class T>
void Cluster::ReplyLater(const Reply<T>& reply, absl::StatusOr<T> result) {
  outbox_.effects.push_back([reply, result = std::move(result)] { reply(result); });
}

template <class T>
bool Cluster::Replayed(const std::string& method, const std::string& request_id,
                       const std::string& job_name, const Reply<T>& reply,
                       const std::function<T(const store::RequestRecord&)>& answer) {
  if (request_id.empty()) return false;
  // The earlier one may be in this very batch.
  const std::vector<store::RequestRecord>& batch = outbox_.changes.requests;
  const auto it = std::ranges::find_if(batch, [&](const store::RequestRecord& request) {
    return request.method == method && request.request_id == request_id;
  });
  absl::StatusOr<std::optional<store::RequestRecord>> found =
      it != batch.end() ? absl::StatusOr<std::optional<store::RequestRecord>>(*it)
                        : store_->FindRequest(method, request_id);
  if (!found.ok()) {
    ReplyLater<T>(reply, found.status());
    return true;
  }
  if (!found->has_value()) return false;
  if ((*found)->job && (*found)->job->name != job_name) {
    ReplyLater<T>(reply,
                  InvalidField({.field = "request_id",
                                .value = request_id,
                                .rule = absl::StrCat("was used for job ", (*found)->job->name,
                                                     ", not ", job_name),
                                .fix = "choose a new random one for every request"}));
    return true;
  }
  ReplyLater<T>(reply, answer(**found));
  return true;
}

void Cluster::Remember(const std::string& method, const std::string& request_id,
                       std::optional<JobRecord> job) {
  if (!request_id.empty()) outbox_.changes.requests.push_back({method, request_id, std::move(job)});
}

absl::Status Cluster::CheckSubmit(const config::JobSpec& spec) const {
  if (FindJob(spec.name) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat(
        "a job named ", spec.name, " exists; choose another name, or delete that one"));
  }
  if (!spec.checkpoint) return absl::OkStatus();
  const auto path = [](const config::JobSpec& job) {
    return std::filesystem::path(job.checkpoint->directory + "/").lexically_normal();
  };
  for (const auto& [number, job] : jobs_) {
    if (store::HasEnded(job.record.state) || !job.spec.checkpoint) continue;
    if (path(job.spec) != path(spec)) continue;
    return InvalidField({.field = "checkpoint.directory",
                         .value = spec.checkpoint->directory,
                         .rule = absl::StrCat("is that of job ", job.record.name, ", which is ",
                                              store::Name(job.record.state)),
                         .fix = "name another one, or end that job first"});
  }
  return absl::OkStatus();
}

std::optional<std::string> Cluster::OwnerOf(const std::string& job) const {
  const JobEntry* const found = FindJob(job);
  return found != nullptr ? std::optional(found->record.owner) : std::nullopt;
}

void Cluster::Submit(const Submission& submission, Reply<JobRecord> reply, Moment now) {
  const auto& [request_id, spec, parsed, owner] = submission;
  if (Replayed<JobRecord>("SubmitJob", request_id, parsed.name, reply, JobAsBefore)) return;
  if (absl::Status status = CheckSubmit(parsed); !status.ok())
    return ReplyLater<JobRecord>(reply, status);
  JobEntry& job = jobs_[++last_number_];
  job.record = {.number = last_number_,
                .id = absl::BytesToHexString(options_.random_bytes(kIdBytes)),
                .name = parsed.name,
                .spec = spec,
                .owner = owner,
                .create_time = now.wall,
                .steps = parsed.steps};
  if (const auto it = generations_.find(parsed.name); it != generations_.end())
    job.record.generation = it->second;
  job.spec = parsed;
  SetState(job, JobState::kQueued, "submitted", now);
  Remember("SubmitJob", request_id, job.record);
  ReplyLater<JobRecord>(reply, job.record);
}

void Cluster::ChangeJob(const std::string& method, const std::string& request_id,
                        const std::string& name, const Reply<JobRecord>& reply,
                        const std::function<absl::Status(JobEntry&)>& change) {
  if (Replayed<JobRecord>(method, request_id, name, reply, JobAsBefore)) return;
  JobEntry* const job = FindJob(name);
  if (job == nullptr) return ReplyLater<JobRecord>(reply, NoSuchJob(name));
  if (absl::Status status = change(*job); !status.ok()) return ReplyLater<JobRecord>(reply, status);
  Remember(method, request_id, job->record);
  ReplyLater<JobRecord>(reply, job->record);
}

void Cluster::Cancel(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                     Moment now) {
  ChangeJob("CancelJob", request_id, name, reply,
            [&](JobEntry& job) { return CancelJob(job, now); });
}

void Cluster::Pause(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                    Moment now) {
  ChangeJob("PauseJob", request_id, name, reply, [&](JobEntry& job) { return PauseJob(job, now); });
}

void Cluster::Resume(const std::string& request_id, const std::string& name, Reply<JobRecord> reply,
                     Moment now) {
  ChangeJob("ResumeJob", request_id, name, reply,
            [&](JobEntry& job) { return ResumeJob(job, now); });
}

absl::Status Cluster::CancelJob(JobEntry& job, Moment now) {
  const JobState state = job.record.state;
  if (state == JobState::kSucceeded || state == JobState::kFailed) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.record.name, " is ", store::Name(state), " already"));
  }
  if (state == JobState::kQueued || state == JobState::kPlanning || state == JobState::kPaused) {
    ReleaseReserved(job);
    SetState(job, JobState::kCancelled, "cancelled by request", now);
    return absl::OkStatus();
  }
  if (!job.run) return absl::OkStatus();  // CANCELLED already
  const bool ends = job.run->stop && (job.run->stop->state == JobState::kFailed ||
                                      job.run->stop->state == JobState::kCancelled);
  if (ends) return absl::OkStatus();
  StopRun(job, {.state = JobState::kCancelled, .reason = "cancelled by request"}, now);
  Advance(job, now);
  return absl::OkStatus();
}

void Cluster::Delete(const std::string& request_id, const std::string& name, Reply<bool> reply) {
  if (Replayed<bool>("DeleteJob", request_id, name, reply,
                     [](const store::RequestRecord&) { return true; }))
    return;
  JobEntry* const job = FindJob(name);
  if (job == nullptr) return ReplyLater<bool>(reply, NoSuchJob(name));
  const JobRecord record = job->record;
  if (!store::HasEnded(record.state)) {
    return ReplyLater<bool>(
        reply, absl::FailedPreconditionError(absl::StrCat(
                   "job ", name, " is ", store::Name(record.state), "; cancel it first")));
  }
  generations_[name] = record.generation;
  outbox_.changes.deleted_jobs.push_back(record.id);
  outbox_.removed.push_back(record.id);
  Remember("DeleteJob", request_id, record);
  // What is still unwritten about it goes with it: the record is written first, so that its
  // generation is remembered.
  if (dirty_.erase(record.id) > 0) outbox_.changes.jobs.push_back(record);
  std::erase_if(waiting_logs_,
                [&](const store::LogRecord& line) { return line.job_id == record.id; });
  jobs_.erase(record.number);
  if (options_.on_delete) {
    outbox_.effects.push_back([this, name] { options_.on_delete(name); });
  }
  ReplyLater<bool>(reply, true);
}

void Cluster::SetDrained(const std::string& request_id, const std::string& worker, bool drained,
                         Reply<membership::Worker> reply, Moment now) {
  const std::string method = drained ? "DrainWorker" : "UndrainWorker";
  const auto as_before = [&](const store::RequestRecord&) {
    const membership::Worker* const found = members_.Find(worker);
    membership::Worker answer =
        found != nullptr ? *found : membership::Worker{.hello = {.worker = worker}};
    answer.drained = drained;
    return answer;
  };
  if (Replayed<membership::Worker>(method, request_id, "", reply, as_before)) return;
  if (absl::Status status = members_.SetDrained(worker, drained); !status.ok()) {
    return ReplyLater<membership::Worker>(reply, status);
  }
  outbox_.changes.drained[worker] = drained;
  if (drained)
    HaltJobOf(*members_.Find(worker), absl::StrCat("worker ", worker, " is drained"), now);
  Remember(method, request_id, std::nullopt);
  ReplyLater<membership::Worker>(reply, *members_.Find(worker));
}

}  // namespace takt::job
