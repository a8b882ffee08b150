// SPDX-License-Identifier: Apache-2.0
// Converts bytes by kind to and from their message.
#pragma once

#include "common/base/memory_kind.h"
#include "takt/v1/memory.pb.h"

namespace takt {

v1::MemoryBytes ToProto(const MemoryBytes& bytes);
MemoryBytes FromProto(const v1::MemoryBytes& bytes);

}  // namespace takt
