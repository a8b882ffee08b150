// SPDX-License-Identifier: Apache-2.0
// Writing one rank's part of a checkpoint.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::checkpoint {

struct TextFile {
  std::string name, text;  // config.json, the index
};

struct Shards {
  std::string directory;               // of what is not complete yet; its parent must be there
  int num_layers = 0;                  // of the model
  std::span<const LayerState> layers;  // those that this rank writes
  std::span<const TextFile> texts;     // likewise
  // Once true, nothing more is written: kCancelled. Null: never. Borrowed for the call.
  const std::atomic<bool>* given_up = nullptr;
};

// Writes weights and moments of each layer, then the texts, hashing as it goes, and syncs all.
// Needs a megabyte of memory, whatever the model. Blocks for the disk. On error what it wrote is
// removed as far as that goes. Errors: kResourceExhausted (the disk is full), others as the disk
// says, naming the file.
absl::StatusOr<std::vector<FileEntry>> SaveShards(FileSystem& files, const Shards& shards);

}  // namespace takt::checkpoint
