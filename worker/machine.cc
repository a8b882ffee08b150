// SPDX-License-Identifier: Apache-2.0
#include "worker/machine.h"

#include <sched.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/plugin/choose_device.h"
#include "worker/plugin/loader.h"
#include "worker/processor_name.h"

namespace takt::worker {
namespace {

// Counts the cores that this process may run on. A container may have fewer than the machine.
int NumCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

std::string HostName() {
  utsname name{};
  return uname(&name) == 0 ? name.nodename : "localhost";
}

// Sets what the driver and the libraries read when they are opened, unless it is set already.
// Kernels of NCCL wait on the device for other ranks. Loading a kernel at its first launch, or
// sharing a queue between streams, makes the device wait for these kernels while other ranks wait
// for this one, which is a deadlock. So kernels are loaded at once and each stream has a queue of
// its own; other settings may hang a job. NCCL makes its ids itself.
void PrepareEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*replace=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/0);
  unsetenv("NCCL_COMM_ID");
}

// Measures the matmul rates. If that fails, logs `failure` and returns zeros.
MatmulRates RatesOf(const absl::StatusOr<std::unique_ptr<backend::Backend>>& backend,
                    const char* failure) {
  if (backend.ok()) Log(LogLevel::kInfo, "backend", {{"description", (*backend)->description()}});
  const absl::StatusOr<MatmulRates> rates =
      backend.ok() ? backend::MeasureMatmuls(**backend) : backend.status();
  if (!rates.ok()) Log(LogLevel::kWarning, failure, {{"error", rates.status().ToString()}});
  return rates.value_or(MatmulRates());
}

// Opens the device only for the measurement.
MatmulRates MeasureDevice(const plugin::CudaEntry& cuda, int index) {
  const auto device = cuda.open_device({.device = index});
  return RatesOf(device.ok() ? (*device)->CreateCompute() : device.status(),
                 "matmul rates of the GPU not measured");
}

absl::StatusOr<std::optional<Device>> FindDevice(const std::string& device, bool share_device) {
  ASSIGN_OR_RETURN(plugin::DeviceWish wish, plugin::ParseDeviceWish(device));
  wish.shared = share_device;
  const auto load = []() -> absl::StatusOr<const plugin::CudaEntry*> {
    RETURN_IF_ERROR(plugin::FindDriver());
    return plugin::LoadCuda(plugin::ModuleDirectory());
  };
  ASSIGN_OR_RETURN(plugin::ChosenDevice chosen, plugin::ChooseDevice(wish, load, "/sys"));
  if (chosen.device) {
    ASSIGN_OR_RETURN(const plugin::CudaEntry* const cuda, load());
    chosen.device->matmul_rates = MeasureDevice(*cuda, chosen.device->index);
    Log(LogLevel::kInfo, "computes on a GPU",
        {{"device", absl::StrCat("cuda:", chosen.device->index)},
         {"name", chosen.device->name},
         {"uuid", chosen.device->uuid}});
    if (chosen.device->cudnn.empty()) {
      Log(LogLevel::kWarning, "has no cuDNN: attention takes 2 to 4 times as long",
          {{"build", kTaktBuild}});
    }
  } else if (!chosen.why_not.empty()) {
    Log(LogLevel::kInfo, "computes on its cores alone", {{"reason", chosen.why_not}});
  }
  return chosen.device;
}

transport::nccl::Library FindNccl(const Device& device) {
  const absl::StatusOr<const plugin::NcclEntry*> nccl = plugin::LoadNccl(plugin::ModuleDirectory());
  const absl::StatusOr<int> version = nccl.ok() ? (*nccl)->library_version() : nccl.status();
  if (!version.ok()) {
    Log(LogLevel::kWarning, "has no NCCL: its GPU exchanges through the host",
        {{"reason", std::string(version.status().message())}});
    return {};
  }
  Log(LogLevel::kInfo, "has NCCL", {{"version", transport::nccl::VersionText(*version)}});
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return {.api = (*nccl)->api,
          .device_index = device.index,
          .presence = {.version = *version,
                       .device = device.uuid,
                       .shares_gpu = shares != nullptr && std::string_view(shares) == "1"}};
}

}  // namespace

absl::StatusOr<Machine> InspectMachine(const std::string& device, bool share_device) {
  PrepareEnvironment();
  std::ifstream cpuinfo("/proc/cpuinfo");
  Machine machine{.host = HostName(), .processor = ProcessorName(cpuinfo), .cores = NumCores()};
  ASSIGN_OR_RETURN(machine.device, FindDevice(device, share_device));
  if (machine.device.has_value()) machine.nccl = FindNccl(*machine.device);
  return machine;
}

MatmulRates MeasureCores(int threads) {
  return RatesOf(backend::CreateCpuBackend({.threads = threads}), "matmul rates not measured");
}

}  // namespace takt::worker
