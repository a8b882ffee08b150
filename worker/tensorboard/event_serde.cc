// SPDX-License-Identifier: Apache-2.0
#include "worker/tensorboard/event_serde.h"

#include <isa-l/crc.h>

#include <cstdint>

#include "takt/v1/tensorboard_event.pb.h"

namespace takt::tensorboard {
namespace {

constexpr std::uint32_t kMaskDelta = 0xa282ead8;

std::uint32_t Crc32c(std::string bytes) {
  // The function's declaration is not const, but it only reads.
  auto* data = reinterpret_cast<unsigned char*>(bytes.data());
  return ~crc32_iscsi(data, static_cast<int>(bytes.size()), ~0U);
}

template <class Int>
std::string LittleEndian(Int value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(Int); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string MaskedCrc(const std::string& bytes) {
  const std::uint32_t crc = Crc32c(bytes);
  return LittleEndian(((crc >> 15) | (crc << 17)) + kMaskDelta);
}

std::string Record(const v1::TensorboardEvent& event) {
  const std::string data = event.SerializeAsString();
  const std::string length = LittleEndian(static_cast<std::uint64_t>(data.size()));
  return length + MaskedCrc(length) + data + MaskedCrc(data);
}

v1::TensorboardEvent At(StepId step, absl::Time time) {
  v1::TensorboardEvent event;
  event.set_wall_time(absl::ToDoubleSeconds(time - absl::UnixEpoch()));
  event.set_step(step.value());
  return event;
}

}  // namespace

std::string VersionRecord(absl::Time time) {
  v1::TensorboardEvent event = At(StepId(0), time);
  event.set_file_version("brain.Event:2");
  return Record(event);
}

std::string StartRecord(StepId step, absl::Time time) {
  v1::TensorboardEvent event = At(step, time);
  event.mutable_session_log()->set_status(v1::TensorboardSessionLog::STATUS_START);
  return Record(event);
}

std::string ScalarsRecord(StepId step, absl::Time time, std::span<const Scalar> scalars) {
  v1::TensorboardEvent event = At(step, time);
  for (const Scalar& scalar : scalars) {
    v1::TensorboardSummary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(std::string(scalar.tag));
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  return Record(event);
}

}  // namespace takt::tensorboard
