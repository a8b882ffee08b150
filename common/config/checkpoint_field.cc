// SPDX-License-Identifier: Apache-2.0
#include "common/config/checkpoint_field.h"

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

void ReadCopies(const v1::CheckpointSpec& proto, JobSpec& job, SpecRules& rules) {
  const std::string& text = proto.in_memory();
  if (text.empty() || text == "auto") {
    job.copy_every_steps = kAutoCopies;
  } else if (text != "off") {
    const bool valid = absl::SimpleAtoi(text, &job.copy_every_steps) && job.copy_every_steps > 0;
    rules.Check(valid, {.field = "checkpoint.in_memory",
                        .value = Shown(text),
                        .rule = "must be auto, off or a number of steps above 0",
                        .fix = "use one of them"});
  }
}

// True if the section asks for copies in memory alone.
bool SavesNoFiles(const v1::CheckpointSpec& proto) {
  return proto.directory().empty() && !proto.in_memory().empty() && proto.in_memory() != "off" &&
         proto.every_steps() == 0 && !proto.has_keep() && proto.resume().empty();
}

}  // namespace

void ReadCheckpoint(const v1::CheckpointSpec& proto, JobSpec& job, SpecRules& rules) {
  ReadCopies(proto, job, rules);
  if (SavesNoFiles(proto)) return;
  Checkpoint& checkpoint = job.checkpoint.emplace();
  checkpoint.directory = proto.directory();
  checkpoint.every_steps = proto.every_steps();
  if (proto.has_keep()) checkpoint.keep = proto.keep();
  if (!proto.resume().empty()) checkpoint.resume = proto.resume();
  rules.Path("checkpoint.directory", checkpoint.directory, "name a folder");
  rules.AtLeast("checkpoint.every_steps", checkpoint.every_steps, 0);
  rules.AtLeast("checkpoint.keep", checkpoint.keep, 1);
  std::int64_t step = 0;
  const std::string& resume = checkpoint.resume;
  rules.Check(resume == "auto" || resume == "none" || (absl::SimpleAtoi(resume, &step) && step > 0),
              {.field = "checkpoint.resume",
               .value = Shown(resume),
               .rule = "must be auto, none or the number of a step",
               .fix = "use one of them"});
}

}  // namespace takt::config
