// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/worker_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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
                      device.shared() ? ", shared" : "", worker.has_nccl() ? ", NCCL" : "",
                      device.cudnn().empty() ? ", no cuDNN: slow attention)" : ")");
}

// Returns the rate in f32 and that in bf16 of what the worker computes on: "1.1e+12, 8e+14".
std::string RatesText(const v1::Worker& worker) {
  const auto text = [](const auto& of) {
    return absl::StrCat(FormatCount(of.matmul_flops_per_second()), ", ",
                        FormatCount(of.bf16_matmul_flops_per_second()));
  };
  return worker.has_device() ? text(worker.device()) : text(worker);
}

// Returns "w1 is quarantined until 2026-01-02 10:17:07 UTC; takt undrain w1 ends that. Blamed for:
// ...".
std::string BlameText(const v1::Worker& worker) {
  std::string text = worker.name();
  if (worker.quarantined()) {
    absl::StrAppend(&text, " is quarantined until ",
                    absl::FormatTime("%Y-%m-%d %H:%M:%S",
                                     absl::FromUnixSeconds(worker.quarantined_until().seconds()),
                                     absl::UTCTimeZone()),
                    " UTC; takt undrain ", worker.name(), " ends that. Blamed for: ");
  } else {
    absl::StrAppend(&text, " is blamed for: ");
  }
  return OneLine(absl::StrCat(text, worker.blame()));
}

}  // namespace

void PrintWorkers(const Context& context, const std::vector<v1::Worker>& workers) {
  if (context.json()) return PrintJson(context, ListJson("workers", workers));
  Table table({"NAME", "STATE", "JOB", "RANK", "HOST", "CORES", "MEMORY", "FLOP/S F32, BF16",
               "DEVICE", "VERSION"});
  for (const v1::Worker& worker : workers) {
    const auto* state = v1::WorkerState_descriptor()->FindValueByNumber(worker.state());
    table.Add(
        {worker.name(),
         absl::StrCat(state != nullptr ? ShortName(*state) : "?",
                      worker.drained() ? ",DRAINED" : "", worker.leaving() ? ",LEAVING" : "",
                      worker.quarantined() ? ",QUARANTINED" : "", worker.held() ? ",HELD" : ""),
         worker.job().empty() ? "-" : worker.job(),
         worker.job().empty() ? "-" : absl::StrCat(worker.rank()), worker.host(),
         absl::StrCat(worker.cores()), FormatBytes(static_cast<double>(worker.memory_bytes())),
         RatesText(worker), DeviceText(worker), worker.program_version()});
  }
  context.terminal.out << table.ToString();
  for (const v1::Worker& worker : workers) {
    if (worker.blame().empty()) continue;
    context.terminal.out << BlameText(worker) << "\n";
  }
  for (const v1::Worker& worker : workers) {
    if (worker.refuses().empty()) continue;
    context.terminal.out << OneLine(absl::StrCat(worker.name(),
                                                 " refuses this coordinator: ", worker.refuses()))
                         << "\n";
  }
  context.terminal.out << std::flush;
}

}  // namespace takt::cli
