// SPDX-License-Identifier: Apache-2.0
// A coordinator that is made up, for the page of `takt ui`: a small job that goes on, one of 1,024
// ranks, one that waits, and one that failed. It prints its address and runs until stdin ends.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/testing/fake_trace.h"

namespace takt::cli {
namespace {

constexpr int kWideStages = 16, kWideChains = 64, kSmallStages = 4;
constexpr int kFirstSteps = 120, kAllSteps = 400;
constexpr absl::Duration kStep = absl::Milliseconds(400);
constexpr std::int64_t kBegin = 1'795'000'000;

void SetRanks(v1::Job& job, int stages, int chains, const std::string& prefix) {
  for (int p = 0; p < stages; ++p) {
    v1::StageAssignment& stage = *job.add_stages();
    stage.set_stage(p);
    stage.set_pp_rank(p);
    stage.set_first_layer(2 * p);
    stage.set_last_layer(2 * p + 2);
    v1::MemoryBytes& memory = *job.add_memory();
    memory.set_weights(420 << 20);
    memory.set_gradients(420 << 20);
    memory.set_optimizer(840 << 20);
    memory.set_stash((stages - p) * (96 << 20));
    memory.set_scratch(128 << 20);
  }
  for (int r = 0; r < stages * chains; ++r) {
    v1::BoundRank& rank = *job.add_ranks();
    rank.set_rank(r);
    rank.set_worker(absl::StrCat(prefix, r));
  }
}

void AddTransition(v1::Job& job, v1::JobState state, int seconds, const std::string& reason) {
  v1::JobTransition& transition = *job.add_transitions();
  transition.set_state(state);
  transition.mutable_time()->set_seconds(kBegin + seconds);
  transition.set_reason(reason);
  job.set_state(state);
  job.set_reason(reason);
}

v1::Job MakeJob(const std::string& name) {
  v1::Job job;
  job.set_name(name);
  job.set_owner("user/alice");
  job.set_steps(kAllSteps);
  job.set_generation(1);
  job.mutable_create_time()->set_seconds(kBegin);
  job.mutable_spec()->set_name(name);
  job.mutable_spec()->mutable_model()->set_layers(8);
  job.mutable_spec()->mutable_checkpoint()->set_directory("checkpoints");
  job.mutable_spec()->mutable_checkpoint()->set_every_steps(50);
  AddTransition(job, v1::JOB_STATE_QUEUED, 0, "submitted");
  return job;
}

v1::Job SmallJob() {
  v1::Job job = MakeJob("kjv-gpt");
  AddTransition(job, v1::JOB_STATE_RUNNING, 4, "");
  job.set_schedule("1f1b");
  job.set_predicted_step_seconds(0.36);
  job.set_predicted_bubble_fraction(0.27);
  job.mutable_checkpoint()->set_step(100);
  job.mutable_checkpoint()->mutable_time()->set_seconds(kBegin + 60);
  SetRanks(job, kSmallStages, 1, "w");
  return job;
}

v1::Job WideJob() {
  v1::Job job = MakeJob("llama-70b");
  AddTransition(job, v1::JOB_STATE_RUNNING, 9, "");
  job.set_schedule("1f1b");
  job.set_predicted_step_seconds(3.1);
  job.set_predicted_bubble_fraction(0.3);
  job.add_warnings("rank 3 is 1.6 times slower than predicted for 20 steps");
  job.mutable_spec()->mutable_parallelism()->set_tensor(8);
  SetRanks(job, kWideStages, kWideChains, "gpu-");
  return job;
}

v1::Job WaitingJob() {
  v1::Job job = MakeJob("finetune-qwen");
  job.set_reason("waits for 8 workers with a GPU; 0 of 1024 are idle");
  return job;
}

v1::Job FailedJob() {
  v1::Job job = MakeJob("gpt2-124m");
  AddTransition(job, v1::JOB_STATE_RUNNING, 3, "");
  AddTransition(job, v1::JOB_STATE_FAILED, 90,
                "worker w7 (rank 1) is lost, and no checkpoint is there");
  job.mutable_end_time()->set_seconds(kBegin + 90);
  for (int r = 0; r < 4; ++r) {
    v1::RankStatus& rank = *job.add_fault();
    rank.set_rank(r);
    rank.set_worker(absl::StrCat("w", 6 + r));
    rank.set_last_step(41);
    rank.set_instruction(absl::StrCat(r, "RECV_F3"));
    rank.set_waiting_for(r == 1 ? "" : absl::StrCat("RECV ", r, "F3 from pp rank ", r - 1));
    rank.set_instruction_seconds(1.5 * r);
    rank.mutable_time()->set_seconds(kBegin + 90);
    for (int i = 0; i < 16; ++i) {
      v1::DoneInstruction& done = *rank.add_recent();
      done.set_instruction(absl::StrCat(r, i % 2 == 0 ? "F" : "B", i / 2));
      done.set_step(41);
      done.set_seconds(0.010 + 0.001 * i);
      done.set_ended_seconds_ago(1.6 - 0.1 * i);
    }
  }
  return job;
}

v1::StepReport MakeStep(int step, int stages, double seconds) {
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(1.7 + 3.8 * std::exp(-step / 45.0) + 0.05 * std::sin(step * 1.7));
  report.set_grad_norm(1.1 + 0.6 * std::exp(-step / 30.0) + 0.1 * std::cos(step * 2.3));
  report.set_learning_rate(3e-4 * std::min(1.0, step / 20.0));
  report.set_tokens(4096);
  report.set_step_seconds(seconds * (1 + 0.03 * std::sin(step * 0.9)));
  report.set_tokens_per_second(4096 / report.step_seconds());
  report.set_bubble_fraction(0.29 + 0.01 * std::sin(step * 0.5));
  report.set_schedule("1f1b");
  for (int p = 0; p < stages; ++p) report.add_bubble_by_pp_rank(0.27 + 0.005 * p);
  if (step % 50 == 0) report.set_validation_loss(report.loss() + 0.1);
  return report;
}

v1::StepSplit MakeSplit(int step, double seconds) {
  v1::StepSplit split;
  split.set_step(step);
  split.set_step_seconds(seconds);
  split.set_compute(0.66 * seconds);
  split.set_imbalance(0.05 * seconds);
  split.set_schedule(0.22 * seconds);
  split.set_communication(0.03 * seconds);
  split.set_data(0.005 * seconds);
  split.set_sync(0.015 * seconds);
  split.set_runtime(0.02 * seconds);
  return split;
}

std::vector<v1::Job> Jobs() { return {SmallJob(), WideJob(), WaitingJob(), FailedJob()}; }

void AddWorker(v1::ListWorkersResponse& response, const std::string& name, const std::string& job,
               int rank) {
  v1::Worker& worker = *response.add_workers();
  worker.set_name(name);
  worker.set_job(job);
  worker.set_rank(rank);
  worker.set_state(job.empty() ? v1::WORKER_STATE_IDLE : v1::WORKER_STATE_BUSY);
  worker.set_cores(16);
  worker.set_memory_bytes(std::int64_t{128} << 30);
  worker.set_program_version("0.1.0");
}

v1::ListWorkersResponse Workers() {
  v1::ListWorkersResponse response;
  for (int r = 0; r < kWideStages * kWideChains; ++r) {
    AddWorker(response, absl::StrCat("gpu-", r), "llama-70b", r);
    v1::Worker& worker = *response.mutable_workers(r);
    worker.set_host(absl::StrCat("node-", r / 8));
    worker.mutable_device()->set_name("NVIDIA H100");
    worker.mutable_device()->set_memory_bytes(std::int64_t{80} << 30);
  }
  for (int r = 0; r < kSmallStages; ++r) AddWorker(response, absl::StrCat("w", r), "kjv-gpt", r);
  AddWorker(response, "w4", "", 0);
  AddWorker(response, "w5", "", 0);
  response.mutable_workers(response.workers_size() - 1)->set_drained(true);
  AddWorker(response, "w6", "", 0);
  v1::Worker& lost = *response.mutable_workers(response.workers_size() - 1);
  lost.set_state(v1::WORKER_STATE_LOST);
  lost.mutable_last_seen()->set_seconds(kBegin + 80);
  lost.set_blame("a job's fault on 2026-11-18");
  return response;
}

grpc::Status Watch(grpc::ServerContext& context, const v1::WatchJobRequest& request,
                   grpc::ServerWriter<v1::WatchJobResponse>& writer) {
  for (const v1::Job& job : Jobs()) {
    if (job.name() != request.name()) continue;
    const bool runs = job.state() == v1::JOB_STATE_RUNNING;
    const bool is_wide = job.ranks_size() > kSmallStages;
    const double seconds = is_wide ? 3.2 : 0.4;
    v1::WatchJobResponse response;
    *response.mutable_job() = job;
    writer.Write(response);
    for (int step = 1; runs && step <= kAllSteps; ++step) {
      if (step > kFirstSteps) absl::SleepFor(kStep);
      if (context.IsCancelled()) break;
      *response.mutable_step() = MakeStep(step, job.stages_size(), seconds);
      writer.Write(response);
      if (step % 10 != 0) continue;
      *response.mutable_split() = MakeSplit(step, seconds);
      writer.Write(response);
    }
    return grpc::Status::OK;
  }
  return {grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no job ", request.name())};
}

grpc::Status Log(grpc::ServerContext& context, const v1::GetJobLogsRequest&,
                 grpc::ServerWriter<v1::GetJobLogsResponse>& writer) {
  for (int i = 0; !context.IsCancelled(); ++i) {
    if (i >= 60) absl::SleepFor(kStep);
    v1::GetJobLogsResponse response;
    v1::LogLine& line = *response.mutable_line();
    line.set_worker(absl::StrCat("w", i % 4));
    line.set_rank(i % 4);
    line.set_step(i / 4);
    line.set_level(i % 17 == 0 ? "warning" : "info");
    line.set_text(i % 17 == 0 ? "tokens came 12 ms late"
                              : absl::StrCat("step=", i / 4, " done <b>"));
    line.set_unix_nanos((kBegin + i) * 1'000'000'000);
    writer.Write(response);
  }
  return grpc::Status::OK;
}

int Serve() {
  trace::SyntheticTrace small("1f1b", kSmallStages, 8, {.message = 0.002, .load = 0.004});
  small.Slow(2, program::Op::kBackward, 1.3);
  small.Get();
  trace::SyntheticTrace wide("1f1b", kWideStages, 32, {.dp_size = kWideChains});
  wide.Get();
  const v1::ListWorkersResponse workers = Workers();
  FakeCoordinator coordinator;
  coordinator.workers = [&](auto&, const auto&, v1::ListWorkersResponse& response) {
    response = workers;
    return grpc::Status::OK;
  };
  coordinator.list = [](auto&, const auto&, v1::ListJobsResponse& response) {
    for (const v1::Job& job : Jobs()) *response.add_jobs() = job;
    return grpc::Status::OK;
  };
  coordinator.get = [](auto&, const v1::GetJobRequest& request, v1::GetJobResponse& response) {
    for (const v1::Job& job : Jobs()) {
      if (job.name() == request.name()) *response.mutable_job() = job;
    }
    return response.has_job() ? grpc::Status::OK
                              : grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no such job");
  };
  coordinator.watch = Watch;
  coordinator.logs = Log;
  coordinator.step_traces = [&](auto&, const v1::GetTraceRequest& request, auto& writer) {
    return WriteTrace((request.name() == "llama-70b" ? wide : small).Get(), request, writer);
  };
  std::cout << coordinator.address() << std::endl;
  while (std::getchar() != EOF) continue;
  return 0;
}

}  // namespace
}  // namespace takt::cli

int main() { return takt::cli::Serve(); }
