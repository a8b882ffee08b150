// SPDX-License-Identifier: Apache-2.0
// Has the job file that tests of fields begin with, and reads it with changes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {

inline constexpr char kTinyJob[] = R"(
name: tiny
model: {family: gpt2, layers: 4, hidden: 64, heads: 4, context: 32, vocab: 256}
data: {train: {path: a.txt, format: bytes}}
batch: {global: 8, microbatch: 2}
steps: 10
)";

// Reads a job file with these changes. The test fails if the reading does.
inline v1::JobSpec Parse(std::vector<std::string> overrides, std::string_view text = kTinyJob) {
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(text, {.overrides = std::move(overrides)});
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

// Returns what is wrong with the values of a job, or "".
inline std::string ErrorOf(const v1::JobSpec& spec) {
  return std::string(ToJobSpec(spec).status().message());
}

}  // namespace takt::config
