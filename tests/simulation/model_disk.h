// SPDX-License-Identifier: Apache-2.0
// The shared disk on which jobs keep checkpoints. The files lie in a directory in memory, so that
// the worker's own code reads them. The model knows which names and contents a power cut may take:
// those that nobody has synced. It can be full, and it can fail.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/simulation/random.h"
#include "tests/testing/checkpoint_job.h"
#include "worker/checkpoint/file_system.h"

namespace takt::simulation {

// Is thrown out of a call to the disk when the process that made it is killed.
struct ProcessKilled {};

struct DiskMood {
  bool full = false;
  bool exchanges = true;         // false: as on NFS
  double error_chance = 0;       // that a call fails
  double late_error_chance = 0;  // that a rename is done but fails, as on NFS
  bool forgets_syncs = false;    // a broken rule: what is synced is lost all the same
};

// One thread.
class ModelDisk final {
 public:
  // random: borrowed.
  explicit ModelDisk(Random* random);
  ModelDisk(const ModelDisk&) = delete;
  ModelDisk& operator=(const ModelDisk&) = delete;

  const std::string& root() const { return root_; }
  DiskMood& mood() { return mood_; }
  // Returns how many calls were made.
  std::int64_t calls() const { return calls_; }

  // Returns the disk as one process sees it. before: called before each call. It may let others go
  // on meanwhile, and throws ProcessKilled if the process is dead. The disk outlives the result.
  std::unique_ptr<worker_checkpoint::FileSystem> Open(std::function<void()> before);

  // Is called after a step directory got its name or lost it.
  void set_on_step(std::function<void(const std::string& directory)> on_step) {
    on_step_ = std::move(on_step);
  }

  // The newest of the names that were not synced are lost, as after a crash of a file system with a
  // journal. Of contents that were not synced a part is left. All processes must be dead.
  void PowerCut();

 private:
  class Process;
  class File;

  // What was at a name.
  struct Saved {
    bool directory = false;
    std::string link, text;
  };
  // A change of a name that was not synced.
  struct Change {
    enum class Kind : std::uint8_t { kCreated, kRenamed, kExchanged, kRemoved };
    Kind kind = Kind::kCreated;
    std::string path;
    std::string other;              // the new name of kRenamed, the second one of kExchanged
    std::optional<Saved> replaced;  // at `other` before kRenamed, at `path` before kRemoved
  };

  // Counts a call. Returns the error with which it fails.
  absl::Status Begin(bool writes, const std::string& path);
  // Returns the error of a rename that was done.
  absl::Status MaybeLate(const std::string& path);
  void Add(Change change);
  void TellSteps(const std::string& from, const std::string& to);
  void Synced(const std::string& directory);
  void Undo(const Change& change);
  // What lies below a directory has moved with it.
  void Rebase(const std::string& from, const std::string& to);
  static std::optional<Saved> Save(const std::string& path);
  static void Restore(const std::string& path, const Saved& saved);

  Random& random_;
  const testing::TemporaryDirectory directory_;
  const std::string root_;  // its real path
  const std::unique_ptr<worker_checkpoint::FileSystem> base_;
  DiskMood mood_;
  std::int64_t calls_ = 0;
  std::vector<Change> changes_;     // in their order
  std::set<std::string> unsynced_;  // files
  std::function<void(const std::string&)> on_step_;
};

}  // namespace takt::simulation
