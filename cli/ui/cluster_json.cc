// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/cluster_json.h"

#include <string>

namespace takt::cli {
namespace {

std::string StateOf(const v1::Worker& worker) {
  const auto* value = v1::WorkerState_descriptor()->FindValueByNumber(worker.state());
  return value != nullptr ? ShortName(*value) : std::to_string(static_cast<int>(worker.state()));
}

Json WorkerJson(const v1::Worker& worker) {
  Json json = {{"name", worker.name()},
               {"state", StateOf(worker)},
               {"drained", worker.drained()},
               {"leaving", worker.leaving()},
               {"quarantined", worker.quarantined()},
               {"held", worker.held()},
               {"job", worker.job()},
               {"rank", worker.rank()},
               {"host", worker.host()},
               {"cores", worker.cores()},
               {"memory_bytes", worker.memory_bytes()},
               {"version", worker.program_version()},
               {"blame", worker.blame()},
               {"refuses", worker.refuses()}};
  if (worker.has_device()) {
    json["device"] = {{"name", worker.device().name()},
                      {"index", worker.device().index()},
                      {"memory_bytes", worker.device().memory_bytes()}};
  }
  const bool is_here =
      worker.state() == v1::WORKER_STATE_IDLE || worker.state() == v1::WORKER_STATE_BUSY;
  if (!is_here && worker.has_last_seen()) json["last_seen"] = ToJson(worker.last_seen());
  return json;
}

Json JobJson(const v1::Job& job) {
  Json json = {{"name", job.name()},
               {"state", StateName(job.state())},
               {"reason", job.reason()},
               {"owner", job.owner()},
               {"steps", job.steps()},
               {"step", job.last_step().step()},
               {"schedule", job.schedule()},
               {"ranks", job.ranks_size()},
               {"warnings", job.warnings_size()},
               {"faults", job.fault_size()},
               {"eta_seconds", job.eta_seconds()},
               {"create_time", ToJson(job.create_time())}};
  if (job.has_end_time()) json["end_time"] = ToJson(job.end_time());
  if (job.has_last_step()) {
    json["loss"] = job.last_step().loss();
    json["tokens_per_second"] = job.last_step().tokens_per_second();
    json["bubble_fraction"] = job.last_step().bubble_fraction();
  }
  return json;
}

}  // namespace

Json WorkersJson(const std::vector<v1::Worker>& workers) {
  Json list = Json::array();
  for (const v1::Worker& worker : workers) list.push_back(WorkerJson(worker));
  return list;
}

Json JobsJson(const std::vector<v1::Job>& jobs) {
  Json list = Json::array();
  for (const v1::Job& job : jobs) list.push_back(JobJson(job));
  return list;
}

Json HeldJobsJson(const std::vector<v1::HeldJob>& jobs) {
  Json list = Json::array();
  for (const v1::HeldJob& job : jobs) {
    list.push_back({{"name", job.name()},
                    {"generation", job.generation()},
                    {"owner", job.owner()},
                    {"num_ranks", job.num_ranks()},
                    {"ranks_here", job.ranks_size()},
                    {"reason", job.reason()}});
  }
  return list;
}

}  // namespace takt::cli
