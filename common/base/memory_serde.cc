// SPDX-License-Identifier: Apache-2.0
#include "common/base/memory_serde.h"

namespace takt {
namespace {

const google::protobuf::FieldDescriptor* FieldOf(std::size_t kind) {
  return v1::MemoryBytes::descriptor()->FindFieldByNumber(static_cast<int>(kind) + 1);
}

}  // namespace

v1::MemoryBytes ToProto(const MemoryBytes& bytes) {
  v1::MemoryBytes out;
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    out.GetReflection()->SetInt64(&out, FieldOf(kind), bytes[static_cast<MemoryKind>(kind)]);
  return out;
}

MemoryBytes FromProto(const v1::MemoryBytes& bytes) {
  MemoryBytes out;
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    out[static_cast<MemoryKind>(kind)] = bytes.GetReflection()->GetInt64(bytes, FieldOf(kind));
  return out;
}

}  // namespace takt
