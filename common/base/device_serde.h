// SPDX-License-Identifier: Apache-2.0
// Writes a device as a message and reads it back. A worker sends its device when it attaches;
// operators read it.
#pragma once

#include "common/base/device.h"
#include "takt/v1/device.pb.h"

namespace takt {

v1::Device ToProto(const Device& device);
Device FromProto(const v1::Device& device);

}  // namespace takt
