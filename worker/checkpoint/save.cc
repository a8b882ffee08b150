// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/save.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/safetensors.h"

namespace takt::worker_checkpoint {
namespace {

constexpr std::size_t kBlockBytes = 1 << 20;

// A file that is written a block at a time and hashed while it is written.
class HashedFile {
 public:
  HashedFile(std::unique_ptr<WritableFile> file, std::string name, std::span<std::byte> block,
             const std::atomic<bool>* given_up)
      : file_(std::move(file)),
        block_(block),
        given_up_(given_up),
        entry_{.name = std::move(name)} {}

  absl::Status Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t count = std::min(bytes.size(), block_.size() - used_);
      std::memcpy(block_.data() + used_, bytes.data(), count);
      used_ += count;
      bytes = bytes.subspan(count);
      if (used_ == block_.size()) RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<checkpoint::FileEntry> Finish() {
    RETURN_IF_ERROR(Flush());
    RETURN_IF_ERROR(file_->Sync());
    RETURN_IF_ERROR(file_->Close());
    entry_.xxh3_128 = hasher_.Digest();
    return entry_;
  }

 private:
  absl::Status Flush() {
    if (given_up_ != nullptr && given_up_->load()) return absl::CancelledError("given up");
    const std::span<const std::byte> full = block_.first(used_);
    hasher_.Add(full);
    entry_.bytes += static_cast<std::int64_t>(used_);
    used_ = 0;
    return full.empty() ? absl::OkStatus() : file_->Append(full);
  }

  std::unique_ptr<WritableFile> file_;
  std::span<std::byte> block_;
  const std::atomic<bool>* given_up_;
  std::size_t used_ = 0;
  checkpoint::Hasher hasher_;
  checkpoint::FileEntry entry_;
};

checkpoint::Tensor TensorOf(std::string name, const model::Parameter& parameter,
                            std::span<const float> values) {
  TAKT_CHECK(static_cast<std::int64_t>(values.size()) == parameter.elements());
  return {.name = std::move(name),
          .dtype = "F32",
          .shape = parameter.shape,
          .bytes = std::as_bytes(values)};
}

std::vector<checkpoint::Tensor> Weights(const LayerState& layer) {
  std::vector<checkpoint::Tensor> tensors;
  for (const ParameterState& state : layer.parameters) {
    tensors.push_back(TensorOf(state.parameter->name, *state.parameter, state.weight));
  }
  return tensors;
}

std::vector<checkpoint::Tensor> Moments(const LayerState& layer) {
  std::vector<checkpoint::Tensor> tensors;
  for (const ParameterState& state : layer.parameters) {
    const model::Parameter& parameter = *state.parameter;
    if (parameter.moments >= 1)
      tensors.push_back(TensorOf(checkpoint::FirstMomentName(parameter.name), parameter, state.m));
    if (parameter.moments >= 2)
      tensors.push_back(TensorOf(checkpoint::SecondMomentName(parameter.name), parameter, state.v));
    if (parameter.fed_back) {
      tensors.push_back(
          TensorOf(checkpoint::LastUpdateName(parameter.name), parameter, state.last_update));
    }
  }
  return tensors;
}

class ShardSaver {
 public:
  ShardSaver(FileSystem& files, const Shards& shards) : files_(files), shards_(shards) {}

  absl::Status SaveAll() {
    RETURN_IF_ERROR(files_.CreateDirectory(shards_.directory));
    for (const LayerState& layer : shards_.layers) {
      RETURN_IF_ERROR(
          SaveTensors(checkpoint::ModelFile(layer.layer, shards_.num_layers), Weights(layer)));
      const std::vector<checkpoint::Tensor> moments = Moments(layer);
      if (moments.empty()) continue;
      RETURN_IF_ERROR(
          SaveTensors(checkpoint::OptimizerFile(layer.layer, shards_.num_layers), moments));
    }
    for (const TextFile& text : shards_.texts) RETURN_IF_ERROR(SaveText(text));
    RETURN_IF_ERROR(files_.SyncDirectory(shards_.directory));
    TAKT_FAILPOINT("checkpoint.written");
    return absl::OkStatus();
  }

  void RemoveAll() {
    for (const std::string& name : created_) files_.Remove(PathOf(name)).IgnoreError();
  }

  std::vector<checkpoint::FileEntry> TakeEntries() { return std::move(entries_); }

 private:
  std::string PathOf(const std::string& name) const {
    return absl::StrCat(shards_.directory, "/", name);
  }

  absl::StatusOr<HashedFile> Create(const std::string& name) {
    created_.push_back(name);  // even if creating fails, because it may exist then
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.Create(PathOf(name)));
    return HashedFile(std::move(file), name, block_, shards_.given_up);
  }

  absl::Status SaveTensors(const std::string& name, std::vector<checkpoint::Tensor> tensors) {
    checkpoint::SortTensors(tensors);
    ASSIGN_OR_RETURN(HashedFile file, Create(name));
    const std::string header = checkpoint::FormatSafetensorsHeader(tensors, {{"format", "pt"}});
    RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(header))));
    for (const checkpoint::Tensor& tensor : tensors) RETURN_IF_ERROR(file.Append(tensor.bytes));
    return Finish(file);
  }

  absl::Status SaveText(const TextFile& text) {
    ASSIGN_OR_RETURN(HashedFile file, Create(text.name));
    RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(text.text))));
    return Finish(file);
  }

  absl::Status Finish(HashedFile& file) {
    ASSIGN_OR_RETURN(checkpoint::FileEntry entry, file.Finish());
    entries_.push_back(std::move(entry));
    return absl::OkStatus();
  }

  FileSystem& files_;
  const Shards& shards_;
  std::vector<std::byte> block_ = std::vector<std::byte>(kBlockBytes);
  std::vector<std::string> created_;
  std::vector<checkpoint::FileEntry> entries_;
};

}  // namespace

absl::StatusOr<std::vector<checkpoint::FileEntry>> SaveShards(FileSystem& files,
                                                              const Shards& shards) {
  ShardSaver saver(files, shards);
  const absl::Status status = saver.SaveAll();
  if (status.ok()) return saver.TakeEntries();
  saver.RemoveAll();
  return status;
}

}  // namespace takt::worker_checkpoint
