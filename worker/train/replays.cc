// SPDX-License-Identifier: Apache-2.0
#include "worker/train/replays.h"

#include "absl/status/statusor.h"
#include "common/base/log.h"

namespace takt::train {
namespace {

// A launch costs the host about 3 us. A fast GPU does this much in that time.
constexpr double kFlopsPerLaunch = 2e9;
// The launches of a block's F in bf16, with its conversions. Backward has more launches, and longer
// ones.
constexpr double kLaunchesPerLayer = 10;

// The most arguments that are remembered, of all parts.
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

Replays::Part& Replays::PartOf(PartBuffers buffers) {
  // Only an observer needs a microbatch's number.
  buffers.forward.microbatch = buffers.backward.microbatch = MicrobatchId(0);
  std::unique_ptr<Part>& part = parts_[buffers];
  if (part == nullptr) part.reset(new Part(*this));
  return *part;
}

absl::Status Replays::Part::Run(const PartArguments& arguments,
                                absl::FunctionRef<absl::Status()> ops) {
  if (all_.recorder_ == nullptr || !all_.started_) return ops();
  const auto it = recordings_.find(arguments);
  if (it == recordings_.end()) {
    all_.Remember();
    recordings_.emplace(arguments, nullptr);
    return ops();
  }
  std::unique_ptr<backend::Recording>& recording = it->second;
  if (recording == nullptr) recording = all_.Record(ops);
  if (recording == nullptr) return ops();
  const absl::Status replayed = recording->Replay();
  if (!absl::IsFailedPrecondition(replayed)) return replayed;
  recording = nullptr;
  --all_.num_recordings_;
  return ops();
}

std::unique_ptr<backend::Recording> Replays::Record(absl::FunctionRef<absl::Status()> ops) {
  if (num_recordings_ >= most_) return nullptr;
  absl::StatusOr<std::unique_ptr<backend::Recording>> recorded = recorder_->Record(ops);
  if (!recorded.ok()) {
    // An error of the device, or of the ops, shows again when they run without a recording.
    Log(LogLevel::kWarning, "no more parts are recorded: their ops go to the device one by one",
        {{"because", recorded.status().ToString()}});
    most_ = num_recordings_;
    return nullptr;
  }
  ++num_recordings_;
  return *std::move(recorded);
}

void Replays::Remember() {
  if (num_remembered_ >= kMostRemembered) {
    for (const auto& [buffers, part] : parts_) {
      absl::erase_if(part->recordings_, [](const auto& each) { return each.second == nullptr; });
    }
    num_remembered_ = num_recordings_;
  }
  ++num_remembered_;
}

}  // namespace takt::train
