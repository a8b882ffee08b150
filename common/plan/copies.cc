// SPDX-License-Identifier: Apache-2.0
#include "common/plan/copies.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/layout/rank_layout.h"

namespace takt::plan {

std::string WhyNoCopies(const CopyInputs& inputs) {
  if (inputs.job.copy_every_steps == 0) return "the job asks for none";
  if (inputs.mesh.size() < 2) return "the job has no second rank to keep them";
  if (inputs.job.model.family == model::Family::kEmulated) return "an emulated model has no state";
  if (inputs.schedule.updates != schedule::Updates::kFlush) {
    return absl::StrCat(inputs.schedule.name,
                        " keeps several versions of the weights, and no step boundary separates "
                        "them");
  }
  if (inputs.mesh.tp_size > 1 || inputs.job.parallelism.tensor_leaves > 1)
    return "copies have no pieces of layers that are split yet";
  if (inputs.job.parallelism.expert > 1) return "copies have no experts of other ranks yet";
  if (inputs.mesh.cp_size > 1) return "no copies are kept of ranks that share sequences yet";
  if (inputs.schedule.spreads_vocabulary) return "copies have no rows of a spread vocabulary yet";
  if (inputs.device == config::DeviceKind::kCuda)
    return "the kernels that the ranks agreed on are not part of copies, and GPUs choose anew";
  return "";
}

bool AsksForCopies(const config::JobSpec& job) {
  return job.copy_every_steps > 0 ||
         (job.copy_every_steps == config::kAutoCopies && !job.checkpoint.has_value());
}

CopyCounts CopiesKept(const CopyInputs& inputs) {
  if (!WhyNoCopies(inputs).empty()) return {};
  return {.own = 2, .peer = inputs.mesh.num_replicas() > 1 && !inputs.shares ? 0 : 2};
}

std::int64_t LargestCopyBytes(const model::Model& model, const mesh::Partition& partition,
                              int num_writers) {
  constexpr std::int64_t kFloatBytes = sizeof(float);
  std::map<std::pair<PpRank, int>, std::int64_t> bytes;  // by pp rank and replica
  for (const mesh::Stage& stage : partition) {
    for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
      for (const model::Parameter& parameter : model.layers[id.value()].parameters)
        bytes[{stage.pp_rank, layout::WriterOf(id, num_writers)}] +=
            kFloatBytes * parameter.state_elements();
    }
  }
  std::int64_t largest = 0;
  for (const auto& [rank, count] : bytes) largest = std::max(largest, count);
  return largest;
}

}  // namespace takt::plan
