// SPDX-License-Identifier: Apache-2.0
// A JobKey travels as the fields `job` and `generation` of the message that it is part of.
#pragma once

#include "common/control/job_key.h"

namespace takt::control {

template <class Proto>
JobKey KeyOf(const Proto& proto) {
  return {proto.job(), Generation(proto.generation())};
}

template <class Proto>
void SetKey(const JobKey& key, Proto& proto) {
  proto.set_job(key.job);
  proto.set_generation(key.generation.value());
}

}  // namespace takt::control
