// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/peer_memory.h"

#include <cuda_runtime_api.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/capture.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {
namespace {

// Whatever keeps a process from sharing or reaching memory, its device is well: an error that stays
// with the process comes back by itself.
absl::Status Unreachable(cudaError_t error, std::string_view what) {
  const absl::Status status = ToStatus(error, what);
  return status.ok() ? status : absl::FailedPreconditionError(std::string(status.message()));
}

absl::StatusOr<std::string> PciBusIdOf(int device) {
  std::array<char, 32> id{};
  RETURN_IF_ERROR(Unreachable(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device),
                              "cudaDeviceGetPCIBusId"));
  return std::string(id.data());
}

// "0000:1B:00.0 " and 64 bytes in hexadecimal.
std::string ToText(const std::string& pci_bus_id, const cudaIpcMemHandle_t& handle) {
  const absl::string_view bytes(handle.reserved, sizeof(handle.reserved));
  return absl::StrCat(pci_bus_id, " ", absl::BytesToHexString(bytes));
}

// What ToText made of a handle.  Errors: kFailedPrecondition (it is no such text).
struct Shown {
  std::string pci_bus_id;
  cudaIpcMemHandle_t handle{};
};
absl::StatusOr<Shown> FromText(const std::string& text) {
  Shown shown;
  const std::size_t end = text.find(' ');
  const std::size_t digits = 2 * sizeof(shown.handle.reserved);
  bool whole = end != std::string::npos && text.size() == end + 1 + digits;
  for (std::size_t i = 0; whole && i < sizeof(shown.handle.reserved); ++i) {
    const char* const byte = text.data() + end + 1 + 2 * i;
    unsigned value = 0;
    whole = std::from_chars(byte, byte + 2, value, 16).ptr == byte + 2;
    shown.handle.reserved[i] = static_cast<char>(value);
  }
  if (!whole) return absl::FailedPreconditionError("the handle of its memory cannot be read");
  shown.pci_bus_id = text.substr(0, end);
  return shown;
}

class CudaPeerMemory final : public PeerMemory {
 public:
  CudaPeerMemory(int device, const Arena& arena) : device_(device), arena_(arena) {}

  absl::StatusOr<std::vector<SharedRegion>> Share() override {
    const NoCapture none;
    RETURN_IF_ERROR(Use());
    ASSIGN_OR_RETURN(const std::string pci_bus_id, PciBusIdOf(device_));
    std::vector<SharedRegion> shared;
    for (const Arena::Region& region : arena_.regions()) {
      cudaIpcMemHandle_t handle{};
      RETURN_IF_ERROR(
          Unreachable(cudaIpcGetMemHandle(&handle, region.base), "cudaIpcGetMemHandle"));
      shared.push_back({.base = region.base,
                        .bytes = static_cast<std::size_t>(region.bytes),
                        .handle = ToText(pci_bus_id, handle)});
    }
    return shared;
  }

  // The library opens handles of GPUs that this process does not see, too.
  absl::StatusOr<const std::byte*> Open(const std::string& text) override {
    ASSIGN_OR_RETURN(const Shown shown, FromText(text));
    const NoCapture none;
    RETURN_IF_ERROR(Use());
    RETURN_IF_ERROR(CheckAccess(shown.pci_bus_id));
    void* base = nullptr;
    RETURN_IF_ERROR(
        Unreachable(cudaIpcOpenMemHandle(&base, shown.handle, cudaIpcMemLazyEnablePeerAccess),
                    "cudaIpcOpenMemHandle"));
    return static_cast<const std::byte*>(base);
  }

  void Close(const std::byte* base) override {
    const NoCapture none;
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(cudaIpcCloseMemHandle(const_cast<std::byte*>(base)));
  }

  absl::Status Copy(const std::byte* from, std::span<std::byte> to, Stream& stream) override {
    RETURN_IF_ERROR(Use());
    return ToStatus(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDefault,
                                    static_cast<cudaStream_t>(stream.native())),
                    absl::StrCat("copying ", to.size(), " bytes of another process"));
  }

 private:
  // The device is a property of the calling thread.
  absl::Status Use() const { return ToStatus(cudaSetDevice(device_), "choosing the device"); }

  // Of a GPU that this process does not see, only the attempt tells.
  absl::Status CheckAccess(const std::string& pci_bus_id) const {
    int owner = 0;
    if (cudaDeviceGetByPCIBusId(&owner, pci_bus_id.c_str()) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return absl::OkStatus();
    }
    if (owner == device_) return absl::OkStatus();
    int can = 0;
    RETURN_IF_ERROR(
        Unreachable(cudaDeviceCanAccessPeer(&can, device_, owner), "cudaDeviceCanAccessPeer"));
    if (can != 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the GPU cuda:", device_, " has no peer access to the one at ", pci_bus_id));
  }

  const int device_;
  const Arena& arena_;
};

}  // namespace

std::unique_ptr<PeerMemory> CreateCudaPeerMemory(int device, const Arena& arena) {
  return std::make_unique<CudaPeerMemory>(device, arena);
}

}  // namespace takt::backend::cuda
