// SPDX-License-Identifier: Apache-2.0
// Writes one rank's part of a checkpoint.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::worker_checkpoint {

struct TextFile {
  std::string name, text;  // config.json or the index
};

struct Shards {
  std::string directory;               // the partial directory; its parent must exist
  int num_layers = 0;                  // of the whole model
  std::span<const LayerState> layers;  // those that this rank writes
  std::span<const TextFile> texts;     // those that this rank writes
  // Once it is true, nothing more is written and the result is kCancelled. Null: never. Borrowed
  // for the call.
  const std::atomic<bool>* given_up = nullptr;
};

// Writes weights and moments of each layer, then the texts, hashes them while writing, and syncs
// all. It needs a megabyte of memory, whatever the model. After an error it removes what it wrote
// as far as it can.
// Blocks: for the disk. Errors: kResourceExhausted (the disk is full), others from the disk; each
// names the file.
absl::StatusOr<std::vector<checkpoint::FileEntry>> SaveShards(FileSystem& files,
                                                              const Shards& shards);

}  // namespace takt::worker_checkpoint
