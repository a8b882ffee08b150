// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>

#include "common/config/job_spec.h"
#include "tests/testing/checkpoint_job.h"

namespace takt::session {

// A GPT-2 of two layers, for tests that run real ranks, and the text that it trains on.
class SmallJob final {
 public:
  SmallJob() {
    std::ofstream data(text(), std::ios::binary);
    for (int i = 0; i < 1000; ++i) data << i * i << ' ';
  }

  // Returns the job over two stages. It saves nothing.
  config::JobSpec Spec(const std::string& name) const {
    config::JobSpec job;
    job.name = name;
    job.model = {.layers = 2,
                 .hidden = 12,
                 .heads = 2,
                 .kv_heads = 2,
                 .inner = 48,
                 .context = 8,
                 .positions = 8,
                 .vocab = 131};
    job.train = {{.path = text(), .format = config::DataFormat::kBytes}};
    job.global_batch = 4;
    job.microbatch = 1;
    job.adamw.learning_rate = 3e-3;
    job.parallelism.pipeline = 2;
    job.parallelism.schedule = "1f1b";
    return job;
  }

  // Returns the path of the text.
  std::string text() const { return directory_.path() + "/train.txt"; }

 private:
  const testing::TemporaryDirectory directory_;
};

}  // namespace takt::session
