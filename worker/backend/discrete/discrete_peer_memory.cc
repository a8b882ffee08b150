// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/discrete_peer_memory.h"

#include <cstring>

#include "common/base/status.h"
#include "worker/backend/discrete/task_stream.h"

namespace takt::backend {

absl::StatusOr<std::vector<SharedRegion>> DiscretePeerMemory::Share() {
  return std::vector{memory_.region()};
}

absl::Status DiscretePeerMemory::Copy(const std::byte* from, std::span<std::byte> to,
                                      Stream& stream) {
  const std::byte* const source = memory_.Twin(from);
  std::byte* const target = memory_.Twin(to.data());
  if (source == nullptr || target == nullptr)
    return absl::InvalidArgumentError("a copy between devices from or to other memory");
  if (copies_ != nullptr) ++*copies_;
  static_cast<TaskStream*>(stream.native())->Push([source, target, bytes = to.size()] {
    std::memcpy(target, source, bytes);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

}  // namespace takt::backend
