// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "takt/v1/job_spec.pb.h"

namespace takt::testing {

// Returns a job of eight emulated layers over `pipeline` workers; 0: auto.
inline v1::JobSpec EmulatedSpec(const std::string& name, int pipeline, std::int64_t steps) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_model()->set_family(v1::MODEL_FAMILY_EMULATED);
  spec.mutable_model()->set_layers(8);
  spec.mutable_model()->set_forward_ms(1);
  spec.mutable_model()->set_input_grad_ms(1);
  spec.mutable_model()->set_weight_grad_ms(1);
  spec.mutable_model()->set_activation_bytes(1024);
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_microbatch(1);
  spec.set_steps(steps);
  if (pipeline > 0) spec.mutable_parallelism()->set_pipeline(pipeline);
  spec.mutable_parallelism()->set_data(1);
  return spec;
}

}  // namespace takt::testing
