// SPDX-License-Identifier: Apache-2.0
// takt_nccl.so: what the worker finds in it.
#include <nccl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "worker/plugin/entry.h"

namespace takt::transport::nccl {
namespace {

absl::StatusOr<std::string> LibraryVersion() {
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version); result != ncclSuccess)
    return absl::InternalError(absl::StrCat("ncclGetVersion: ", ncclGetErrorString(result)));
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

constexpr plugin::NcclEntry kEntry = {.version = kTaktVersion, .library_version = LibraryVersion};

}  // namespace
}  // namespace takt::transport::nccl

extern "C" __attribute__((visibility("default"))) const takt::plugin::NcclEntry* TaktNcclPlugin() {
  return &takt::transport::nccl::kEntry;
}
