// SPDX-License-Identifier: Apache-2.0
#include "common/plan/copies.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/layout/rank_layout.h"
#include "common/model/split_layers.h"

namespace takt::plan {

std::string WhyNoCopies(const CopyInputs& inputs) {
  if (inputs.job.copy_every_steps == 0) return "the job asks for none";
  if (inputs.mesh.size() / inputs.mesh.tp_size < 2)
    return "the job has no second rank to keep them";
  if (inputs.job.model.family == model::Family::kEmulated) return "an emulated model has no state";
  if (inputs.schedule.updates != schedule::Updates::kFlush) {
    return absl::StrCat(inputs.schedule.name,
                        " keeps several versions of the weights, and no step boundary separates "
                        "them");
  }
  // Nobody checks whether the hosts have room.
  if (inputs.device == config::DeviceKind::kCuda && !AsksForCopies(inputs.job))
    return "on GPUs a job must ask for them, as they are in the hosts' memory";
  if (inputs.schedule.spreads_vocabulary) return "copies have no rows of a spread vocabulary yet";
  return "";
}

bool AsksForCopies(const config::JobSpec& job) {
  return job.copy_every_steps > 0 ||
         (job.copy_every_steps == config::kAutoCopies && !job.checkpoint.has_value());
}

bool NeedsAllCopies(const config::JobSpec& job, config::DeviceKind device) {
  const config::Parallelism& p = job.parallelism;
  return p.tensor > 1 || p.tensor_leaves > 1 || p.expert > 1 || device == config::DeviceKind::kCuda;
}

CopyCounts CopiesKept(const CopyInputs& inputs) {
  if (!WhyNoCopies(inputs).empty()) return {};
  const int alike = inputs.mesh.num_replicas() / inputs.job.parallelism.expert;
  return {.own = 2, .peer = alike > 1 && !inputs.shares ? 0 : 2};
}

std::int64_t LargestCopyBytes(const model::Model& model, const mesh::Partition& partition,
                              int num_writers) {
  constexpr std::int64_t kFloatBytes = sizeof(float);
  std::map<std::pair<PpRank, int>, std::int64_t> bytes;  // by pp rank and replica
  for (const mesh::Stage& stage : partition) {
    for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
      for (const model::Parameter& parameter : model.layers[id.value()].parameters)
        bytes[{stage.pp_rank, layout::WriterOf(id, num_writers)}] +=
            kFloatBytes * parameter.state_parts() * model::ElementsHere(model, parameter);
    }
  }
  std::int64_t largest = 0;
  for (const auto& [rank, count] : bytes) largest = std::max(largest, count);
  return largest;
}

}  // namespace takt::plan
