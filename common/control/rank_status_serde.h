// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/control/rank_status.h"
#include "takt/v1/job.pb.h"

namespace takt::control {

v1::RankStatus ToProto(const RankStatus& status);
RankStatus FromProto(const v1::RankStatus& proto);

}  // namespace takt::control
