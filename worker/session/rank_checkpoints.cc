// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_checkpoints.h"

#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/data/data_root.h"
#include "common/model/hf_config_text.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/load.h"
#include "worker/checkpoint/ownership.h"
#include "worker/session/parameter_state.h"
#include "worker/session/rooted_directory.h"
#include "worker/train/initial_weights.h"

namespace takt::session {
namespace {

constexpr char kField[] = "checkpoint.directory";

// Names the field in an error that the disk has with the directory. Other errors, and a full disk,
// are not due to the directory that the job names.
absl::Status NameDirectory(const absl::Status& status, const std::string& directory) {
  const bool of_the_directory = FieldErrorsOf(status).empty() && !absl::IsAborted(status) &&
                                !absl::IsDataLoss(status) && !absl::IsResourceExhausted(status);
  if (status.ok() || !of_the_directory) return status;
  return UnwritableDirectory(kField, directory, status,
                             "name another one under the checkpoint root");
}

// Returns the files that no rank loads. Rank 0 verifies them.
std::vector<std::string> UnloadedFiles(const checkpoint::Manifest& manifest, int num_layers) {
  std::set<std::string> loaded;
  for (LayerId layer(0); layer.value() < num_layers; ++layer) {
    loaded.insert(checkpoint::ModelFile(layer, num_layers));
    loaded.insert(checkpoint::OptimizerFile(layer, num_layers));
  }
  std::vector<std::string> others;
  for (const checkpoint::FileEntry& file : manifest.files) {
    if (!loaded.contains(file.name)) others.push_back(file.name);
  }
  return others;
}

std::optional<KeptPlan> ReadKernelPlan(const checkpoint::StepFiles& step) {
  if (step.manifest().Find(checkpoint::kKernelPlanFile) == nullptr) return std::nullopt;
  const std::string path = absl::StrCat(step.path(), "/", checkpoint::kKernelPlanFile);
  return KeptPlan{.text = ReadPlanText(path), .where = path};
}

// Returns null if the store is in host memory.
backend::MemoryBackend* DeviceOf(const train::ParameterStore& store) {
  return store.backend().memory_is_host() ? nullptr : &store.backend();
}

}  // namespace

absl::Status RankCheckpoints::Open() {
  const control::JobKey& key = options_.assignment->key;
  const auto resolve = [this] {
    return data::ResolveUnderRoot(kField, options_.root, spec().directory);
  };
  RETURN_IF_ERROR(AwaitSaved({.step = options_.assignment->saved,
                              .at_most = options_.assignment->resume_at_most,
                              .directory = spec().directory,
                              .resolve = resolve,
                              .patience = options_.patience,
                              .given_up = &given_up_}));
  absl::StatusOr<std::string> made =
      first() ? MakeDirectoryUnderRoot(*options_.files, kField, options_.root, spec().directory)
              : data::JoinUnderRoot(kField, options_.root, spec().directory);
  RETURN_IF_ERROR(NameDirectory(made.status(), spec().directory));
  directory_ = *std::move(made);
  const std::string name = absl::StrCat(".shared-", key.job, "-", key.generation.value());
  RETURN_IF_ERROR(CheckShared(options_.meeting, directory_, name));
  ASSIGN_OR_RETURN(directory_, resolve());
  return first() ? NameDirectory(TakeDirectory(), spec().directory) : absl::OkStatus();
}

absl::Status RankCheckpoints::TakeDirectory() {
  const control::JobKey& key = options_.assignment->key;
  const checkpoint::Owner owner{.job_id = options_.assignment->job_id,
                                .job = key.job,
                                .generation = key.generation,
                                .epoch = options_.assignment->epoch};
  RETURN_IF_ERROR(worker_checkpoint::TakeOwnership(*options_.files, directory_, owner,
                                                   options_.assignment->other_jobs));
  RETURN_IF_ERROR(worker_checkpoint::NoteEpoch(*options_.files, directory_, owner));
  ASSIGN_OR_RETURN(
      const std::vector<std::string> removed,
      worker_checkpoint::RemoveStale(*options_.files, directory_, key.job, key.generation));
  for (const std::string& name : removed) {
    Log(LogLevel::kInfo, "removed what an earlier generation left",
        {{"job", key.job}, {"directory", directory_}, {"name", name}});
  }
  return absl::OkStatus();
}

absl::StatusOr<control::Resumed> RankCheckpoints::Restore(train::ParameterStore* store) {
  const control::Assignment& assignment = *options_.assignment;
  return AgreeOnResume(options_.meeting,
                       {.job = &assignment.job,
                        .directory = directory_,
                        .wanted = assignment.resume,
                        .at_most = assignment.resume_at_most},
                       [&](const checkpoint::StepFiles& step) { return Load(step, store); });
}

void RankCheckpoints::KeepConfig() {
  const StepId saved = options_.assignment->saved;
  if (!first() || saved == StepId(0)) return;
  const absl::StatusOr<checkpoint::StepFiles> step = checkpoint::StepFiles::Open(
      absl::StrCat(directory_, "/", checkpoint::StepDirectoryName(saved)));
  const std::vector<std::string> names = {checkpoint::kConfigFile};
  if (step.ok() && worker_checkpoint::VerifyFiles(*step, names, /*threads=*/1).ok())
    ReadConfig(*step);
}

void RankCheckpoints::ReadConfig(const checkpoint::StepFiles& step) {
  std::ifstream config(absl::StrCat(step.path(), "/", checkpoint::kConfigFile));
  config_text_ = model::WithHeadSize(std::string{std::istreambuf_iterator<char>(config), {}});
}

absl::Status RankCheckpoints::Load(const checkpoint::StepFiles& step,
                                   train::ParameterStore* store) {
  if (first()) {
    RETURN_IF_ERROR(worker_checkpoint::VerifyFiles(
        step, UnloadedFiles(step.manifest(), num_layers()), options_.threads));
    ReadConfig(step);
    kernel_plan_ = ReadKernelPlan(step);
  }
  if (store == nullptr) return absl::OkStatus();
  return worker_checkpoint::LoadLayers(
      step, LoadTargets(*options_.model, *store),
      {.num_layers = num_layers(), .threads = options_.threads, .device = DeviceOf(*store)});
}

absl::StatusOr<std::vector<worker_checkpoint::TextFile>> RankCheckpoints::Texts(
    const std::string& kernel_plan) const {
  if (!first() || store_ == nullptr) return std::vector<worker_checkpoint::TextFile>();
  std::string config = config_text_;
  if (config.empty()) {
    ASSIGN_OR_RETURN(config,
                     train::FormatCheckpointConfig(options_.assignment->job, options_.data_root));
  }
  std::vector<worker_checkpoint::TextFile> texts = {
      {checkpoint::kConfigFile, std::move(config)},
      {checkpoint::kIndexFile,
       checkpoint::FormatIndex(split_.has_value() ? split_->whole() : *options_.model)}};
  if (!kernel_plan.empty()) texts.push_back({checkpoint::kKernelPlanFile, kernel_plan});
  return texts;
}

std::vector<worker_checkpoint::LayerState> RankCheckpoints::WrittenState() const {
  if (store_ == nullptr) return {};
  if (split_.has_value()) {
    store_->SelectVersion(0);
    return split_->WrittenState();
  }
  const mesh::Mesh& mesh = options_.assignment->mesh;
  std::vector<worker_checkpoint::LayerState> layers = session::WrittenState(
      *store_, mesh.ReplicaOf(options_.assignment->rank), mesh.num_replicas());
  if (tables_.has_value()) tables_->AddWritten(layers);
  if (experts_.has_value()) experts_->AddAway(layers);
  return layers;
}

absl::Status RankCheckpoints::Complete(StepId step, const worker_checkpoint::Snapshot& copy) {
  if (moments_.has_value()) {
    RETURN_IF_ERROR(moments_->Join(step, [&](LayerId layer, const model::Parameter& parameter) {
      return split_.has_value() ? split_->JoinedOf(layer, parameter) : copy.PlaceOf(parameter);
    }));
  }
  if (split_.has_value()) return split_->Join(step, copy);
  if (experts_.has_value()) return experts_->Join(step, copy);
  return tables_.has_value() ? tables_->Join(step, copy) : absl::OkStatus();
}

absl::Status RankCheckpoints::Allocate(train::ParameterStore* store, const std::string& kernel_plan,
                                       const Groups& groups) {
  store_ = store;
  if (store != nullptr && groups.sharers != nullptr)
    moments_.emplace(*options_.assignment, *store, *groups.sharers);
  if (store != nullptr && groups.vocabulary != nullptr) {
    tables_.emplace(*options_.assignment, *options_.model, *store, *groups.vocabulary,
                    moments_.has_value() ? &*moments_ : nullptr);
  }
  if (store != nullptr && options_.model->tensor.splits())
    split_.emplace(*options_.assignment, *options_.model, *store, groups.tensor);
  if (store != nullptr && options_.model->experts.shares())
    experts_.emplace(*options_.assignment, *options_.model, *store, *groups.tensor);
  CheckpointSaverOptions saver{.key = options_.assignment->key,
                               .rank = options_.assignment->rank,
                               .directory = directory_,
                               .num_layers = num_layers(),
                               .threads = options_.threads,
                               .device = store == nullptr ? nullptr : DeviceOf(*store),
                               .given_up = &given_up_,
                               .withdraw = options_.withdraw,
                               .files = options_.files,
                               .clock = options_.clock};
  if (moments_.has_value() || tables_.has_value() || split_.has_value() || experts_.has_value()) {
    saver.complete = [this](StepId step, const worker_checkpoint::Snapshot& copy) {
      return Complete(step, copy);
    };
  }
  ASSIGN_OR_RETURN(saver.texts, Texts(kernel_plan));
  ASSIGN_OR_RETURN(saver_, CheckpointSaver::Create(std::move(saver), WrittenState()));
  return absl::OkStatus();
}

void RankCheckpoints::Save(StepId step, const std::function<void(Report)>& report) {
  saver_->Save(step, WrittenState(),
               [report](control::CheckpointReport part) { report(std::move(part)); });
}

void RankCheckpoints::Finish() { saver_->Finish(); }

}  // namespace takt::session
