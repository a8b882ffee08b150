// SPDX-License-Identifier: Apache-2.0
#include "common/trace/job_trace_serde.h"

#include "gtest/gtest.h"

namespace takt::trace {
namespace {

// Without one of these times a job and its explanation would predict different steps.
TEST(JobTraceSerde, GivesBackEveryCost) {
  const cost::GroupCost group{.size = 2, .link = {.latency = 1e-5, .seconds_per_byte = 1e-9}};
  const JobTrace trace{.job = "j",
                       .generation = Generation(3),
                       .predicted = {.forward = {1, 2},
                                     .input_grad = {3, 4},
                                     .weight_grad = {5, 6},
                                     .backward = {8, 10},
                                     .pair_ratio = 0.9,
                                     .link = {.latency = 1e-4, .seconds_per_byte = 1e-8},
                                     .reduction = {0.1, 0.2},
                                     .terms = 4,
                                     .chained_sums = true,
                                     .tied_reduction = 0.3,
                                     .optimizer = {0.4, 0.5},
                                     .embedding_update = {0.01, 0.02},
                                     .head_update = {0.03, 0.04},
                                     .vocabulary_forward = {0.6, 0.7},
                                     .vocabulary_backward = {0.8, 0.9},
                                     .tensor = {group},
                                     .context = {group, group},
                                     .halves_run_beside = false},
                       .layer_work = {1, 2, 3}};
  const JobTrace read = FromHeader(ToHeader(trace));
  EXPECT_EQ(read.predicted, trace.predicted);
  EXPECT_EQ(read.layer_work, trace.layer_work);
  EXPECT_EQ(read.generation, trace.generation);
}

TEST(JobTraceSerde, WhatAnOlderProgramLeftOutIsAsUsual) {
  v1::TraceHeader header = ToHeader({.job = "j"});
  header.mutable_predicted()->clear_pair_ratio();
  header.mutable_predicted()->clear_terms();
  EXPECT_EQ(FromHeader(header).predicted, cost::Costs());
}

}  // namespace
}  // namespace takt::trace
