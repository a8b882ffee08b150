// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/worker_text.h"

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/base/text.h"

namespace takt::cli {
namespace {

// Returns "cuda:1 NVIDIA H200 (139.8 GiB, compute 9.0, driver 13.0, node 0, NCCL)", or "cpu".
std::string DeviceText(const v1::Worker& worker) {
  if (!worker.has_device()) return "cpu";
  const v1::Device& device = worker.device();
  return absl::StrCat("cuda:", device.index(), " ", device.name(), " (",
                      FormatBytes(static_cast<double>(device.memory_bytes())), ", compute ",
                      device.compute_capability(), ", driver ", device.driver_version(),
                      device.has_numa_node() ? absl::StrCat(", node ", device.numa_node()) : "",
                      device.shared() ? ", shared" : "", worker.has_nccl() ? ", NCCL)" : ")");
}

// Returns the rate in f32 and that in bf16 of what the worker computes on: "1.1e+12, 8e+14".
std::string RatesText(const v1::Worker& worker) {
  const auto text = [](const auto& of) {
    return absl::StrCat(FormatCount(of.matmul_flops_per_second()), ", ",
                        FormatCount(of.bf16_matmul_flops_per_second()));
  };
  return worker.has_device() ? text(worker.device()) : text(worker);
}

}  // namespace

void PrintWorkers(const Context& context, const std::vector<v1::Worker>& workers) {
  if (context.json()) return PrintJson(context, ListJson("workers", workers));
  Table table({"NAME", "STATE", "JOB", "RANK", "HOST", "CORES", "MEMORY", "FLOP/S F32, BF16",
               "DEVICE", "VERSION"});
  for (const v1::Worker& worker : workers) {
    const auto* state = v1::WorkerState_descriptor()->FindValueByNumber(worker.state());
    table.Add({worker.name(),
               absl::StrCat(state != nullptr ? ShortName(*state) : "?",
                            worker.drained() ? ",DRAINED" : "", worker.leaving() ? ",LEAVING" : ""),
               worker.job().empty() ? "-" : worker.job(),
               worker.job().empty() ? "-" : absl::StrCat(worker.rank()), worker.host(),
               absl::StrCat(worker.cores()),
               FormatBytes(static_cast<double>(worker.memory_bytes())), RatesText(worker),
               DeviceText(worker), worker.program_version()});
  }
  context.terminal.out << table.ToString() << std::flush;
}

}  // namespace takt::cli
