// SPDX-License-Identifier: Apache-2.0
#include "common/base/time_serde.h"

#include <cstdint>

namespace takt {

google::protobuf::Timestamp ToProto(absl::Time time) {
  const std::int64_t nanos = absl::ToUnixNanos(time);
  google::protobuf::Timestamp proto;
  proto.set_seconds(nanos / 1'000'000'000);
  proto.set_nanos(static_cast<std::int32_t>(nanos % 1'000'000'000));
  return proto;
}

absl::Time FromProto(const google::protobuf::Timestamp& proto) {
  return absl::FromUnixSeconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

}  // namespace takt
