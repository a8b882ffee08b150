// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/job_service.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/access/decide.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/job_streams.h"
#include "coordinator/rpc/trace_stream.h"
#include "coordinator/rpc/unary_call.h"
#include "coordinator/store/record_serde.h"
#include "coordinator/submission/submission.h"

namespace takt::coordinator_rpc {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;

// Returns the number of the last job of the page before, or 0 for the first page.
absl::StatusOr<std::int64_t> ParsePageToken(const std::string& token) {
  if (token.empty()) return 0;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), number);
  if (error == std::errc() && end == token.data() + token.size() && number > 0) return number;
  return InvalidField({.field = "page_token",
                       .value = token,
                       .rule = "must be the next_page_token of an earlier answer",
                       .fix = "leave it empty for the first page"});
}

using Change = void (job::Cluster::*)(const std::string& request_id, const std::string& name,
                                      job::Reply<store::JobRecord> reply, Moment now);

// This runs on the deciding thread, so that the job is still the same when it is changed.
absl::Status MayChange(const access::Identity& who, const job::Cluster& cluster,
                       const std::string& name) {
  const std::optional<std::string> owner = cluster.OwnerOf(name);
  return owner ? access::MayUseJob(who, name, *owner) : absl::OkStatus();
}

// The same for a job that is held. If the coordinator has a job of that name too, the caller must
// be allowed to use both.
absl::Status MayDecide(const access::Identity& who, const job::Cluster& cluster,
                       const std::string& name) {
  RETURN_IF_ERROR(MayChange(who, cluster, name));
  const std::optional<std::string> owner = cluster.OwnerOfHeld(name);
  return owner ? access::MayUseJob(who, name, *owner) : absl::OkStatus();
}

using May = absl::Status (*)(const access::Identity& who, const job::Cluster& cluster,
                             const std::string& name);

template <class Request, class Response>
grpc::ServerUnaryReactor* ChangeJob(job::Coordinator* coordinator, AuditEntry audit_entry,
                                    grpc::CallbackServerContext* context, const Request* request,
                                    Response* response, Change change, May may = MayChange) {
  auto call = std::make_shared<UnaryCall>(context, std::move(audit_entry));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator->Post(
      [request, response, change, may, call = std::move(call)](job::Cluster& cluster, Moment now) {
        if (absl::Status status = may(call->who(), cluster, request->name()); !status.ok())
          return call->Finish(status);
        (cluster.*change)(
            submission::RequestIdOf(call->who(), request->request_id()), request->name(),
            [response, call](absl::StatusOr<store::JobRecord> job) {
              if (job.ok()) *response->mutable_job() = store::ToProto(*job);
              call->Finish(job.status());
            },
            now);
      });
  return reactor;
}

// A job that was only validated has no record.
v1::Job Describe(const submission::Accepted& accepted, const v1::SubmitJobRequest& request) {
  if (accepted.job) return store::ToProto(*accepted.job);
  v1::Job job;
  job.set_name(request.spec().name());
  job.set_steps(request.spec().steps());
  *job.mutable_spec() = request.spec();
  const store::PlanSummary& tried = accepted.tried;
  store::SetPlan(tried, job);
  job.mutable_warnings()->Add(tried.warnings.begin(), tried.warnings.end());
  return job;
}

}  // namespace

AuditEntry JobService::AuditEntryOn(const grpc::CallbackServerContext& context,
                                    absl::string_view method, const std::string& job) const {
  return guard_->AuditEntryOf(context, MethodOf<v1::JobService>(method), "job/" + job);
}

absl::StatusOr<job::JobView> JobService::Find(const grpc::CallbackServerContext& context,
                                              const std::string& name) const {
  job::JobView job = coordinator_->board().FindByName(name);
  if (job == nullptr) return job::NoSuchJob(name, coordinator_->board().IsHeld(name));
  RETURN_IF_ERROR(access::MayUseJob(guard_->CallerOf(context), name, job->owner));
  return job;
}

grpc::ServerUnaryReactor* JobService::SubmitJob(grpc::CallbackServerContext* context,
                                                const v1::SubmitJobRequest* request,
                                                v1::SubmitJobResponse* response) {
  auto call = std::make_shared<UnaryCall>(
      context, AuditEntryOn(*context, "SubmitJob", request->spec().name()));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  absl::StatusOr<config::JobSpec> spec = config::ToJobSpec(request->spec());
  if (!spec.ok()) {
    call->Finish(spec.status());
    return reactor;
  }
  submission::Submit(coordinator_,
                     {.who = call->who(),
                      .request_id = request->request_id(),
                      .spec = request->spec().SerializeAsString(),
                      .parsed = *std::move(spec),
                      .validate_only = request->validate_only()},
                     [request, response, call](const absl::StatusOr<submission::Accepted>& job) {
                       if (job.ok()) *response->mutable_job() = Describe(*job, *request);
                       call->Finish(job.status());
                     });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::GetJob(grpc::CallbackServerContext* context,
                                             const v1::GetJobRequest* request,
                                             v1::GetJobResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::StatusOr<job::JobView> job = Find(*context, request->name());
  if (job.ok()) *response->mutable_job() = store::ToProto(**job);
  reactor->Finish(ToGrpc(job.status(), *context));
  return reactor;
}

grpc::ServerUnaryReactor* JobService::ListJobs(grpc::CallbackServerContext* context,
                                               const v1::ListJobsRequest* request,
                                               v1::ListJobsResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::StatusOr<std::int64_t> before = ParsePageToken(request->page_token());
  if (!before.ok()) {
    reactor->Finish(ToGrpc(before.status(), *context));
    return reactor;
  }
  const int asked = request->page_size();
  const int limit = asked > 0 ? std::min(asked, kMaxPageSize) : kDefaultPageSize;
  const access::Identity who = guard_->CallerOf(*context);
  // A user sees only jobs of its own, so no others are looked at.
  const std::optional<std::string> owner =
      who.role == access::Role::kUser ? std::optional(who.ToString()) : std::nullopt;
  const std::vector<job::JobView> jobs = coordinator_->board().List(
      *before, limit + 1,
      [&](const store::JobRecord& job) { return access::MayUseJob(who, job.name, job.owner).ok(); },
      owner);
  const std::size_t shown = std::min<std::size_t>(jobs.size(), limit);
  for (std::size_t i = 0; i < shown; ++i) *response->add_jobs() = store::ToProto(*jobs[i]);
  if (jobs.size() > shown) response->set_next_page_token(absl::StrCat(jobs[shown - 1]->number));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return StartWatch(context, coordinator_, Find(*context, request->name()), stall_,
                    StepId(request->after_step()));
}

grpc::ServerUnaryReactor* JobService::CancelJob(grpc::CallbackServerContext* context,
                                                const v1::CancelJobRequest* request,
                                                v1::CancelJobResponse* response) {
  return ChangeJob(coordinator_, AuditEntryOn(*context, "CancelJob", request->name()), context,
                   request, response, &job::Cluster::Cancel);
}

grpc::ServerUnaryReactor* JobService::PauseJob(grpc::CallbackServerContext* context,
                                               const v1::PauseJobRequest* request,
                                               v1::PauseJobResponse* response) {
  return ChangeJob(coordinator_, AuditEntryOn(*context, "PauseJob", request->name()), context,
                   request, response, &job::Cluster::Pause);
}

grpc::ServerUnaryReactor* JobService::ResumeJob(grpc::CallbackServerContext* context,
                                                const v1::ResumeJobRequest* request,
                                                v1::ResumeJobResponse* response) {
  return ChangeJob(coordinator_, AuditEntryOn(*context, "ResumeJob", request->name()), context,
                   request, response, &job::Cluster::Resume);
}

grpc::ServerUnaryReactor* JobService::ListHeldJobs(grpc::CallbackServerContext* context,
                                                   const v1::ListHeldJobsRequest*,
                                                   v1::ListHeldJobsResponse* response) {
  auto call = std::make_shared<UnaryCall>(context, AuditEntryOn(*context, "ListHeldJobs", ""));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator_->Post([response, call = std::move(call)](job::Cluster& cluster, Moment) {
    for (const job::HeldJobView& held : cluster.ListHeld()) {
      if (access::MayUseJob(call->who(), held.key.job, held.owner).ok())
        *response->add_jobs() = ToProto(held);
    }
    call->Finish(absl::OkStatus());
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::AdoptJob(grpc::CallbackServerContext* context,
                                               const v1::AdoptJobRequest* request,
                                               v1::AdoptJobResponse* response) {
  return ChangeJob(coordinator_, AuditEntryOn(*context, "AdoptJob", request->name()), context,
                   request, response, &job::Cluster::Adopt, MayDecide);
}

grpc::ServerUnaryReactor* JobService::AbandonJob(grpc::CallbackServerContext* context,
                                                 const v1::AbandonJobRequest* request,
                                                 v1::AbandonJobResponse*) {
  auto call =
      std::make_shared<UnaryCall>(context, AuditEntryOn(*context, "AbandonJob", request->name()));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator_->Post([request, call = std::move(call)](job::Cluster& cluster, Moment now) {
    if (absl::Status status = MayDecide(call->who(), cluster, request->name()); !status.ok())
      return call->Finish(status);
    cluster.Abandon(
        submission::RequestIdOf(call->who(), request->request_id()), request->name(),
        [call](absl::StatusOr<bool> abandoned) { call->Finish(abandoned.status()); }, now);
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::DeleteJob(grpc::CallbackServerContext* context,
                                                const v1::DeleteJobRequest* request,
                                                v1::DeleteJobResponse*) {
  auto call =
      std::make_shared<UnaryCall>(context, AuditEntryOn(*context, "DeleteJob", request->name()));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator_->Post([request, call = std::move(call)](job::Cluster& cluster, Moment) {
    if (absl::Status status = MayChange(call->who(), cluster, request->name()); !status.ok())
      return call->Finish(status);
    cluster.Delete(submission::RequestIdOf(call->who(), request->request_id()), request->name(),
                   [call](absl::StatusOr<bool> deleted) { call->Finish(deleted.status()); });
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::GetJobLogsResponse>* JobService::GetJobLogs(
    grpc::CallbackServerContext* context, const v1::GetJobLogsRequest* request) {
  return StartLogs(context, coordinator_, Find(*context, request->name()), stall_, *request);
}

grpc::ServerWriteReactor<v1::GetTraceResponse>* JobService::GetTrace(
    grpc::CallbackServerContext* context, const v1::GetTraceRequest* request) {
  return StartTrace(context, Find(*context, request->name()).status(), traces_, *request);
}

}  // namespace takt::coordinator_rpc
