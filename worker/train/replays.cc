// SPDX-License-Identifier: Apache-2.0
#include "worker/train/replays.h"

#include "absl/status/statusor.h"
#include "common/base/log.h"

namespace takt::train {
namespace {

// A launch costs the host about 3 us, in which a fast GPU does this much.
constexpr double kFlopsPerLaunch = 2e9;
// Of a block's F in bf16, conversions among them; those of backward are more, and longer.
constexpr double kLaunchesPerLayer = 10;

// Arguments that came once and never again (a loss scale that each step has its own of).
constexpr std::size_t kMostRemembered = 8 * Replays::kMost;

}  // namespace

bool IsShort(const model::Model& model, const mesh::Stage& stage) {
  double flops = 0, launches = 0;
  for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
    flops += model.layers[id.value()].cost.forward_flops;
    launches += kLaunchesPerLayer;
  }
  return flops < launches * kFlopsPerLaunch;
}

absl::Status Replays::Run(const PartArguments& arguments, absl::FunctionRef<absl::Status()> part) {
  if (recorder_ == nullptr || !started_) return part();
  const auto it = parts_.find(arguments);
  if (it == parts_.end()) {
    Remember(arguments);
    return part();
  }
  std::unique_ptr<backend::Recording>& recording = it->second;
  if (recording == nullptr) {
    if (num_recordings_ >= most_) return part();
    absl::StatusOr<std::unique_ptr<backend::Recording>> recorded = recorder_->Record(part);
    if (!recorded.ok()) {
      // An error of the device, or of the part, shows again.
      Log(LogLevel::kWarning, "no more parts are recorded: their ops go to the device one by one",
          {{"because", recorded.status().ToString()}});
      most_ = num_recordings_;
      return part();
    }
    recording = *std::move(recorded);
    ++num_recordings_;
  }
  const absl::Status replayed = recording->Replay();
  if (!absl::IsFailedPrecondition(replayed)) return replayed;
  recording = nullptr;
  --num_recordings_;
  return part();
}

void Replays::Remember(const PartArguments& arguments) {
  if (parts_.size() >= kMostRemembered) {
    absl::erase_if(parts_, [](const auto& part) { return part.second == nullptr; });
  }
  parts_.emplace(arguments, nullptr);
}

}  // namespace takt::train
