// SPDX-License-Identifier: Apache-2.0
#include "worker/train/emulated_meetings.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::train {
namespace {

// Sums of so small numbers are exact.
constexpr std::int64_t kLargestValue = 1 << 12;

float ValueOf(std::int64_t serial, int part) {
  return static_cast<float>((serial + 7 * std::int64_t{part}) % kLargestValue);
}

absl::Status Check(const char* meeting, int part, float found, float expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(meeting, " brought ", found, " in part ", part,
                                          ", expected ", expected,
                                          ": a rank was at another meeting"));
}

}  // namespace

EmulatedMeetings::EmulatedMeetings(transport::Collective* group, std::int64_t bytes)
    : group_(group) {
  if (group == nullptr) return;
  const std::size_t size = static_cast<std::size_t>(bytes) / sizeof(float);
  const auto ranks = static_cast<std::size_t>(group->size());
  tensor_.resize(size);
  for (std::size_t i = 0; i < ranks; ++i) {
    const std::size_t begin = size * i / ranks, end = size * (i + 1) / ranks;
    parts_.push_back(std::span(tensor_).subspan(begin, end - begin));
  }
}

absl::Status EmulatedMeetings::Meet(StepId step, program::PartKind kind, std::int64_t serial) {
  if (group_ == nullptr) return absl::InternalError("no rank shares these layers");
  return kind == program::PartKind::kScatter ? Scatter(step, serial) : Gather(step, serial);
}

absl::Status EmulatedMeetings::Gather(StepId step, std::int64_t serial) {
  const auto mine = static_cast<std::size_t>(group_->index());
  if (!parts_[mine].empty()) parts_[mine].front() = ValueOf(serial, group_->index());
  RETURN_IF_ERROR(group_->AllGatherParts(step, parts_));
  for (int part = 0; part < group_->size(); ++part) {
    const std::span<float> each = parts_[static_cast<std::size_t>(part)];
    if (each.empty()) continue;
    RETURN_IF_ERROR(Check("a gather", part, each.front(), ValueOf(serial, part)));
  }
  return absl::OkStatus();
}

absl::Status EmulatedMeetings::Scatter(StepId step, std::int64_t serial) {
  for (int part = 0; part < group_->size(); ++part) {
    const std::span<float> each = parts_[static_cast<std::size_t>(part)];
    if (!each.empty()) each.front() = ValueOf(serial, part);
  }
  RETURN_IF_ERROR(group_->ReduceScatterSum(step, parts_));
  const int mine = group_->index();
  const std::span<float> sum = parts_[static_cast<std::size_t>(mine)];
  if (sum.empty()) return absl::OkStatus();
  return Check("a scatter", mine, sum.front(),
               static_cast<float>(group_->size()) * ValueOf(serial, mine));
}

}  // namespace takt::train
