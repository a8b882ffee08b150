// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"

namespace takt {

google::protobuf::Timestamp ToProto(absl::Time time);
absl::Time FromProto(const google::protobuf::Timestamp& proto);

}  // namespace takt
