// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/convert.h"

#include "common/base/device_serde.h"
#include "common/base/time_serde.h"
#include "common/control/rank_status_serde.h"

namespace takt::coordinator_rpc {
v1::Worker ToProto(const membership::Worker& worker) {
  const control::Hello& hello = worker.hello;
  v1::Worker out;
  out.set_name(hello.worker);
  out.set_incarnation(hello.incarnation);
  out.set_state(static_cast<v1::WorkerState>(worker.state()));
  out.set_drained(worker.drained);
  out.set_leaving(worker.leaving);
  out.set_quarantined(worker.blame.quarantined);
  if (worker.blame.quarantined)
    *out.mutable_quarantined_until() = takt::ToProto(worker.blame.until);
  out.set_blame(worker.blame.reasons);
  out.set_fault_score(worker.blame.score);
  out.set_refuses(worker.refuses);
  if (worker.hold) {
    out.set_job(worker.hold->key.job);
    out.set_rank(worker.hold->rank.value());
  }
  out.set_host(hello.host);
  out.set_processor(hello.processor);
  out.set_cores(hello.cores);
  out.set_threads(hello.threads);
  out.set_memory_bytes(hello.memory_bytes);
  out.set_matmul_flops_per_second(hello.matmul_rates.f32);
  out.set_bf16_matmul_flops_per_second(hello.matmul_rates.bf16);
  out.set_fp8_matmul_flops_per_second(hello.matmul_rates.fp8);
  out.set_program_version(hello.program_version);
  out.set_protocol_version(hello.protocol_version);
  if (hello.device) *out.mutable_device() = takt::ToProto(*hello.device);
  out.set_has_nccl(hello.has_nccl);
  *out.mutable_attach_time() = takt::ToProto(worker.attach_time);
  *out.mutable_last_seen() = takt::ToProto(worker.last_seen);
  return out;
}

v1::HeldJob ToProto(const job::HeldJobView& held) {
  v1::HeldJob out;
  out.set_name(held.key.job);
  out.set_generation(held.key.generation.value());
  out.set_owner(held.owner);
  out.set_cluster_id(held.cluster_id);
  out.set_num_ranks(held.num_ranks);
  for (const control::RankStatus& rank : held.ranks) *out.add_ranks() = control::ToProto(rank);
  out.set_reason(held.why_not);
  return out;
}

v1::StepSplit ToProto(const job::StepSplit& split) {
  const auto part = [&](explain::Part which) { return split.parts[static_cast<int>(which)]; };
  v1::StepSplit out;
  out.set_step(split.step.value());
  out.set_step_seconds(split.step_seconds);
  out.set_compute(part(explain::Part::kCompute));
  out.set_imbalance(part(explain::Part::kImbalance));
  out.set_schedule(part(explain::Part::kSchedule));
  out.set_communication(part(explain::Part::kCommunication));
  out.set_data(part(explain::Part::kData));
  out.set_sync(part(explain::Part::kSync));
  out.set_runtime(part(explain::Part::kRuntime));
  return out;
}

}  // namespace takt::coordinator_rpc
