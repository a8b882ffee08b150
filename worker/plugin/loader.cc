// SPDX-License-Identifier: Apache-2.0
#include "worker/plugin/loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"

namespace takt::plugin {
namespace {

template <typename Entry>
absl::StatusOr<const Entry*> Load(const std::string& path, const char* entry_name) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(path,
                     " is not there: install the package takt-worker-cuda, or build with "
                     "TAKT_CUDA=ON where the CUDA toolkit and its libraries are"));
  }
  // RTLD_LOCAL: the module uses its own copies of our static libraries. RTLD_NOW: a missing symbol
  // is found here and not in the middle of a step.
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " cannot be opened: ", dlerror(),
                     ". Install what is missing, or put it into the same folder"));
  }
  const auto entry_of = reinterpret_cast<const Entry* (*)()>(dlsym(module, entry_name));
  if (entry_of == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no module of this program: it has no ", entry_name));
  }
  const Entry* const entry = entry_of();
  if (entry->version != std::string_view(kTaktVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is of version ", entry->version, ", this worker of ", kTaktVersion,
                     ": install takt-worker and takt-worker-cuda of one version"));
  }
  return entry;
}

}  // namespace

std::string ModuleDirectory() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "lib" / "takt").string();
}

absl::Status FindDriver() {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "no NVIDIA driver: ", dlerror(), "; install one (docs/deploy.md), or use --device cpu"));
}

absl::StatusOr<const CudaEntry*> LoadCuda(const std::string& directory) {
  return Load<CudaEntry>(absl::StrCat(directory, "/takt_cuda.so"), backend::cuda::kModuleEntryName);
}

absl::StatusOr<const NcclEntry*> LoadNccl(const std::string& directory) {
  return Load<NcclEntry>(absl::StrCat(directory, "/takt_nccl.so"),
                         transport::nccl::kModuleEntryName);
}

}  // namespace takt::plugin
