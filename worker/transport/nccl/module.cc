// SPDX-License-Identifier: Apache-2.0
// takt_nccl.so: NCCL as the worker calls it (api.h).
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "worker/transport/nccl/api.h"
#include "worker/transport/nccl/module_entry.h"

namespace takt::transport::nccl {
namespace {

static_assert(static_cast<int>(kSuccess) == ncclSuccess);
static_assert(static_cast<int>(kUnhandledCudaError) == ncclUnhandledCudaError);
static_assert(static_cast<int>(kSystemError) == ncclSystemError);
static_assert(static_cast<int>(kInternalError) == ncclInternalError);
static_assert(static_cast<int>(kInvalidArgument) == ncclInvalidArgument);
static_assert(static_cast<int>(kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(kInProgress) == ncclInProgress);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));

Result Of(ncclResult_t result) { return static_cast<Result>(result); }

// The calling thread may have used no device before, or another one.
struct DeviceComm {
  ncclComm_t comm = nullptr;
  int device = 0;
};

bool Choose(int device) { return cudaSetDevice(device) == cudaSuccess; }

ncclComm_t CommOf(Comm comm) { return static_cast<DeviceComm*>(comm)->comm; }

template <ncclResult_t (*call)(ncclComm_t)>
Result CallFor(Comm comm) {
  if (!Choose(static_cast<DeviceComm*>(comm)->device)) return kUnhandledCudaError;
  return Of(call(CommOf(comm)));
}

// The communicator is gone after this, whatever the result.
template <ncclResult_t (*call)(ncclComm_t)>
Result End(Comm comm) {
  const Result result = CallFor<call>(comm);
  delete static_cast<DeviceComm*>(comm);
  return result;
}

Result MakeId(UniqueId* id) {
  ncclUniqueId made;
  const Result result = Of(ncclGetUniqueId(&made));
  std::memcpy(id->bytes.data(), made.internal, sizeof(made));
  return result;
}

Result Init(const InitOptions& options, Comm* comm) {
  if (!Choose(options.device)) return kUnhandledCudaError;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = options.max_ctas;
  ncclUniqueId id;
  std::memcpy(id.internal, options.id.bytes.data(), sizeof(id));
  auto* const made = new DeviceComm{.device = options.device};
  const Result result =
      Of(ncclCommInitRankConfig(&made->comm, options.num_ranks, id, options.rank, &config));
  if (made->comm == nullptr) {
    delete made;
    return result == kSuccess || result == kInProgress ? kInternalError : result;
  }
  *comm = made;
  return result;
}

Result AsyncError(Comm comm, Result* state) {
  ncclResult_t told = ncclSuccess;
  const Result result = Of(ncclCommGetAsyncError(CommOf(comm), &told));
  *state = Of(told);
  return result;
}

Result GroupStart() { return Of(ncclGroupStart()); }
Result GroupEnd() { return Of(ncclGroupEnd()); }

Result Send(const void* data, std::size_t bytes, int peer, Comm comm, NativeStream stream) {
  if (!Choose(static_cast<DeviceComm*>(comm)->device)) return kUnhandledCudaError;
  return Of(ncclSend(data, bytes, ncclInt8, peer, CommOf(comm), static_cast<cudaStream_t>(stream)));
}

Result Recv(void* data, std::size_t bytes, int peer, Comm comm, NativeStream stream) {
  if (!Choose(static_cast<DeviceComm*>(comm)->device)) return kUnhandledCudaError;
  return Of(ncclRecv(data, bytes, ncclInt8, peer, CommOf(comm), static_cast<cudaStream_t>(stream)));
}

const char* ErrorString(Result result) {
  return ncclGetErrorString(static_cast<ncclResult_t>(result));
}

// The text belongs to the library, not to one communicator.
const char* LastError() {
  const char* const text = ncclGetLastError(nullptr);
  return text == nullptr ? "" : text;
}

constexpr Api kApi = {.unique_id = MakeId,
                      .init = Init,
                      .async_error = AsyncError,
                      .group_start = GroupStart,
                      .group_end = GroupEnd,
                      .send = Send,
                      .recv = Recv,
                      .finalize = CallFor<ncclCommFinalize>,
                      .destroy = End<ncclCommDestroy>,
                      .abort = End<ncclCommAbort>,
                      .error_string = ErrorString,
                      .last_error = LastError};

absl::StatusOr<int> LibraryVersion() {
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version); result != ncclSuccess)
    return absl::InternalError(absl::StrCat("ncclGetVersion: ", ncclGetErrorString(result)));
  return version;
}

constexpr ModuleEntry kEntry = {
    .version = kTaktVersion, .library_version = LibraryVersion, .api = &kApi};

}  // namespace
}  // namespace takt::transport::nccl

extern "C" __attribute__((visibility("default"))) const takt::transport::nccl::ModuleEntry*
TaktNcclPlugin() {
  return &takt::transport::nccl::kEntry;
}
