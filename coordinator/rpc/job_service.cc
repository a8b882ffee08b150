// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/job_service.h"

#include <algorithm>
#include <charconv>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/access/decide.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "coordinator/rpc/job_streams.h"
#include "coordinator/rpc/streams.h"
#include "coordinator/rpc/trace_stream.h"
#include "coordinator/store/record_serde.h"

namespace takt::coordinator_rpc {
namespace {

constexpr int kDefaultPageSize = 100;
constexpr int kMaxPageSize = 1000;

absl::Status NoSuchJob(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no job named ", name, "; `takt jobs` lists them"));
}

// The number of the last job of the page before; 0: the first page.
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

// Under which the answer to a request is remembered: nobody is given another one's.
std::string RequestIdOf(const access::Identity& who, const std::string& request_id) {
  if (request_id.empty() || who.role == access::Role::kTrusted) return request_id;
  return absl::StrCat(who.ToString(), "/", request_id);
}

using Change = void (job::Cluster::*)(const std::string& request_id, const std::string& name,
                                      job::Reply<store::JobRecord> reply, Moment now);

// On the deciding thread, so that the job is still the same when it is changed.
absl::Status MayChange(const access::Identity& who, const job::Cluster& cluster,
                       const std::string& name) {
  const std::optional<std::string> owner = cluster.OwnerOf(name);
  return owner ? access::MayUseJob(who, name, *owner) : absl::OkStatus();
}

template <class Request, class Response>
grpc::ServerUnaryReactor* ChangeJob(job::Coordinator* coordinator, Deed deed,
                                    grpc::CallbackServerContext* context, const Request* request,
                                    Response* response, Change change) {
  auto call = std::make_shared<UnaryCall>(context, std::move(deed));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator->Post(
      [request, response, change, call = std::move(call)](job::Cluster& cluster, Moment now) {
        if (absl::Status status = MayChange(call->who(), cluster, request->name()); !status.ok())
          return call->Finish(status);
        (cluster.*change)(
            RequestIdOf(call->who(), request->request_id()), request->name(),
            [response, call](absl::StatusOr<store::JobRecord> job) {
              if (job.ok()) *response->mutable_job() = store::ToProto(*job);
              call->Finish(job.status());
            },
            now);
      });
  return reactor;
}

// Of a job; empty where nobody was asked who he is.
std::string OwnerName(const access::Identity& who) {
  return who.role == access::Role::kTrusted ? "" : who.ToString();
}

// A call of SubmitJob on its way: spec, plan, then the deciding thread.
struct Submission {
  std::shared_ptr<UnaryCall> call;
  const v1::SubmitJobRequest* request;
  v1::SubmitJobResponse* response;
};

// What is known of a job before it is stored.
void Describe(const config::JobSpec& spec, const Submission& submission) {
  v1::Job& job = *submission.response->mutable_job();
  job.set_name(spec.name);
  job.set_steps(spec.steps);
  *job.mutable_spec() = submission.request->spec();
}

void Take(job::Coordinator* coordinator, const Submission& submission,
          const config::JobSpec& spec) {
  coordinator->Post([submission, spec](job::Cluster& cluster, Moment now) {
    const v1::SubmitJobRequest& request = *submission.request;
    if (request.validate_only()) return submission.call->Finish(cluster.CheckSubmit(spec));
    const access::Identity& who = submission.call->who();
    cluster.Submit(
        {.request_id = RequestIdOf(who, request.request_id()),
         .spec = request.spec().SerializeAsString(),
         .parsed = spec,
         .owner = OwnerName(who)},
        [submission](absl::StatusOr<store::JobRecord> job) {
          submission.response->Clear();
          if (job.ok()) *submission.response->mutable_job() = store::ToProto(*job);
          submission.call->Finish(job.status());
        },
        now);
  });
}

void Plan(job::Coordinator* coordinator, const Submission& submission,
          const config::JobSpec& spec) {
  const config::Parallelism& parallelism = spec.parallelism;
  const plan::PlanOptions options{
      .max_workers = *parallelism.pipeline * parallelism.data.value_or(1),
      .device = parallelism.device};
  const auto planned = [coordinator, submission, spec](const absl::StatusOr<plan::Plan>& plan) {
    if (!plan.ok()) return submission.call->Finish(plan.status());
    Describe(spec, submission);
    v1::Job& job = *submission.response->mutable_job();
    job.set_schedule(plan->schedule.name);
    job.mutable_warnings()->Add(plan->warnings.begin(), plan->warnings.end());
    Take(coordinator, submission, spec);
  };
  if (coordinator->TryPlan(spec, options, planned)) return;
  submission.call->Finish(absl::ResourceExhaustedError(
      "too many jobs that were submitted wait to be planned; submit again in some seconds"));
}

}  // namespace

Deed JobService::DeedOn(const grpc::CallbackServerContext& context, absl::string_view method,
                        const std::string& job) const {
  return guard_->DeedOf(context, MethodOf<v1::JobService>(method), "job/" + job);
}

absl::StatusOr<job::JobView> JobService::Find(const grpc::CallbackServerContext& context,
                                              const std::string& name) const {
  job::JobView job = coordinator_->board().FindByName(name);
  if (job == nullptr) return NoSuchJob(name);
  RETURN_IF_ERROR(access::MayUseJob(guard_->CallerOf(context), name, job->owner));
  return job;
}

grpc::ServerUnaryReactor* JobService::SubmitJob(grpc::CallbackServerContext* context,
                                                const v1::SubmitJobRequest* request,
                                                v1::SubmitJobResponse* response) {
  const Submission submission = {
      .call = std::make_shared<UnaryCall>(context,
                                          DeedOn(*context, "SubmitJob", request->spec().name())),
      .request = request,
      .response = response};
  grpc::ServerUnaryReactor* const reactor = submission.call->reactor();
  absl::StatusOr<config::JobSpec> spec = config::ToJobSpec(request->spec());
  if (!spec.ok()) {
    submission.call->Finish(spec.status());
  } else if (!spec->parallelism.pipeline) {
    // `pipeline: auto`: the plan depends on the workers that will be there.
    Describe(*spec, submission);
    Take(coordinator_, submission, *spec);
  } else {
    Plan(coordinator_, submission, *spec);
  }
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
  const std::vector<job::JobView> jobs = coordinator_->board().List(
      *before, limit + 1, [who = guard_->CallerOf(*context)](const store::JobRecord& job) {
        return access::MayUseJob(who, job.name, job.owner).ok();
      });
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
  return ChangeJob(coordinator_, DeedOn(*context, "CancelJob", request->name()), context, request,
                   response, &job::Cluster::Cancel);
}

grpc::ServerUnaryReactor* JobService::PauseJob(grpc::CallbackServerContext* context,
                                               const v1::PauseJobRequest* request,
                                               v1::PauseJobResponse* response) {
  return ChangeJob(coordinator_, DeedOn(*context, "PauseJob", request->name()), context, request,
                   response, &job::Cluster::Pause);
}

grpc::ServerUnaryReactor* JobService::ResumeJob(grpc::CallbackServerContext* context,
                                                const v1::ResumeJobRequest* request,
                                                v1::ResumeJobResponse* response) {
  return ChangeJob(coordinator_, DeedOn(*context, "ResumeJob", request->name()), context, request,
                   response, &job::Cluster::Resume);
}

grpc::ServerUnaryReactor* JobService::DeleteJob(grpc::CallbackServerContext* context,
                                                const v1::DeleteJobRequest* request,
                                                v1::DeleteJobResponse*) {
  auto call = std::make_shared<UnaryCall>(context, DeedOn(*context, "DeleteJob", request->name()));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator_->Post([request, call = std::move(call)](job::Cluster& cluster, Moment) {
    if (absl::Status status = MayChange(call->who(), cluster, request->name()); !status.ok())
      return call->Finish(status);
    cluster.Delete(RequestIdOf(call->who(), request->request_id()), request->name(),
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
