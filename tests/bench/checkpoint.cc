// SPDX-License-Identifier: Apache-2.0
// Measures snapshot, save and verified load of a checkpoint of some gigabytes, beside memcpy of as
// many bytes.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/layout.h"
#include "common/model/model.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/temporary_folder.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/load.h"
#include "worker/checkpoint/save.h"
#include "worker/checkpoint/snapshot.h"

namespace takt::bench::checkpoint_command {
namespace {

constexpr double kLeastLoadShare = 0.60;            // share of memcpy's rate
constexpr double kMostSnapshotSecondsPerGb = 1.00;  // training pauses that long

struct Options : CommonOptions {
  int layers = 28, threads = 1, runs = 5;
  std::string directory;
};

struct Result {
  std::int64_t bytes = 0;
  int files = 0;
  // Saving runs once. All other times are those of the best run.
  double memcpy_seconds = 0, snapshot_seconds = 0, save_seconds = 0, load_seconds = 0;

  double LoadShare() const { return memcpy_seconds / load_seconds; }
  double SnapshotSecondsPerGb() const {
    return snapshot_seconds / (static_cast<double>(bytes) * 1e-9);
  }
  double BytesPerSecond(double seconds) const { return static_cast<double>(bytes) / seconds; }
};

template <class F>
double SecondsOf(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void KeepBest(double& best, double seconds) {
  best = best == 0 ? seconds : std::min(best, seconds);
}

// Holds the weights and moments of all layers in one range of memory.
class LiveState {
 public:
  explicit LiveState(const model::Model& model)
      : floats_(static_cast<std::size_t>(3 * model.num_parameters())) {
    void* memory = mmap(nullptr, floats_ * sizeof(float), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TAKT_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<float*>(memory);
    for (std::size_t i = 0; i < floats_; ++i) memory_[i] = static_cast<float>(i % 8191);
    std::span<float> left = all();
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const LayerId id(static_cast<int>(i));
      worker_checkpoint::LayerState state{.layer = id};
      worker_checkpoint::LayerTarget target{.layer = id};
      for (const model::Parameter& parameter : model.layers[i].parameters) {
        const auto count = static_cast<std::size_t>(parameter.elements());
        const std::span<float> weight = left.first(count), m = left.subspan(count, count),
                               v = left.subspan(2 * count, count);
        state.parameters.push_back({&parameter, weight, m, v});
        target.parameters.push_back({&parameter, weight, m, v});
        left = left.subspan(3 * count);
      }
      states.push_back(std::move(state));
      targets.push_back(std::move(target));
    }
  }
  ~LiveState() { munmap(memory_, floats_ * sizeof(float)); }
  LiveState(const LiveState&) = delete;
  LiveState& operator=(const LiveState&) = delete;

  std::span<float> all() { return {memory_, floats_}; }

  std::vector<worker_checkpoint::LayerState> states;
  std::vector<worker_checkpoint::LayerTarget> targets;

 private:
  const std::size_t floats_;
  float* memory_ = nullptr;
};

// Measures the limit: it copies as many bytes in memory, in one piece for each thread.
void CopyOnThreads(std::span<float> to, const float* from, int threads) {
  std::vector<std::jthread> copiers;
  const std::size_t part = (to.size() + threads - 1) / threads;
  for (std::size_t begin = 0; begin < to.size(); begin += part) {
    const std::span<float> piece = to.subspan(begin, std::min(part, to.size() - begin));
    copiers.emplace_back(
        [piece, from, begin] { std::memcpy(piece.data(), from + begin, piece.size_bytes()); });
  }
}

absl::StatusOr<Result> Measure(const Options& options) {
  ASSIGN_OR_RETURN(const model::Model model, model::BuildModel({.layers = options.layers,
                                                                .hidden = 1024,
                                                                .heads = 16,
                                                                .kv_heads = 16,
                                                                .inner = 4096,
                                                                .context = 1024,
                                                                .positions = 1024,
                                                                .vocab = 50257},
                                                               1));
  const int num_layers = static_cast<int>(model.layers.size());
  ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create(options.directory));
  LiveState live(model);
  ASSIGN_OR_RETURN(worker_checkpoint::Snapshot snapshot,
                   worker_checkpoint::Snapshot::Create(live.states));
  const float* copy = snapshot.layers()[0].parameters[0].weight.data();
  Result result{.bytes = snapshot.bytes()};
  for (int run = 0; run < options.runs; ++run) {
    KeepBest(result.snapshot_seconds, SecondsOf([&] {
               TAKT_CHECK(snapshot.Take(live.states, {.threads = options.threads}).ok());
             }));
  }

  const std::unique_ptr<worker_checkpoint::FileSystem> files =
      worker_checkpoint::CreatePosixFileSystem();
  checkpoint::Manifest manifest{.job = "bench", .generation = Generation(1), .step = StepId(1)};
  const std::string partial = absl::StrCat(
      folder->path(), "/",
      checkpoint::PartialDirectoryName(manifest.step, manifest.job, manifest.generation));
  absl::StatusOr<std::vector<checkpoint::FileEntry>> saved;
  result.save_seconds = SecondsOf([&] {
    saved = worker_checkpoint::SaveShards(
        *files,
        {.directory = partial, .num_layers = num_layers, .layers = snapshot.layers(), .texts = {}});
  });
  RETURN_IF_ERROR(saved.status());
  manifest.files = *saved;
  result.files = static_cast<int>(saved->size());
  ASSIGN_OR_RETURN(const std::string text, checkpoint::FormatManifest(manifest));
  RETURN_IF_ERROR(
      worker_checkpoint::Publish(*files, folder->path(), text, {.token = "bench"}).status());

  const std::string path =
      absl::StrCat(folder->path(), "/", checkpoint::StepDirectoryName(manifest.step));
  for (int run = 0; run <= options.runs; ++run) {  // the first fills the page cache
    absl::Status loaded;
    const double load_seconds = SecondsOf([&] {
      const absl::StatusOr<checkpoint::StepFiles> step = checkpoint::StepFiles::Open(path);
      loaded = step.ok() ? worker_checkpoint::LoadLayers(
                               *step, live.targets,
                               {.num_layers = num_layers, .threads = options.threads})
                         : step.status();
    });
    RETURN_IF_ERROR(loaded);
    const double memcpy_seconds =
        SecondsOf([&] { CopyOnThreads(live.all(), copy, options.threads); });
    if (run == 0) continue;
    KeepBest(result.load_seconds, load_seconds);
    KeepBest(result.memcpy_seconds, memcpy_seconds);
  }
  return result;
}

void PrintText(const Options& options, const Result& result) {
  absl::PrintF("%.2f GB in %d files, %d thread(s)\n", static_cast<double>(result.bytes) * 1e-9,
               result.files, options.threads);
  absl::PrintF("%-22s %9s %9s  %s\n", "", "seconds", "GB/s", "rule");
  const auto row = [&](const char* name, double seconds, const std::string& rule) {
    absl::PrintF("%-22s %9.3f %9.2f  %s\n", name, seconds, result.BytesPerSecond(seconds) * 1e-9,
                 rule);
  };
  row("memcpy", result.memcpy_seconds, "");
  row("load, verified", result.load_seconds,
      absl::StrFormat("%.0f%% of memcpy's rate (at least %.0f%%)", 100 * result.LoadShare(),
                      100 * kLeastLoadShare));
  row("snapshot", result.snapshot_seconds,
      absl::StrFormat("%.3f s per GB (at most %.2f)", result.SnapshotSecondsPerGb(),
                      kMostSnapshotSecondsPerGb));
  row("save, hashed, synced", result.save_seconds, "");
}

void PrintJson(const Options& options, const Result& result) {
  const nlohmann::json json = {
      {"bytes", result.bytes},
      {"files", result.files},
      {"threads", options.threads},
      {"memcpy_bytes_per_second", result.BytesPerSecond(result.memcpy_seconds)},
      {"load_bytes_per_second", result.BytesPerSecond(result.load_seconds)},
      {"load_share", result.LoadShare()},
      {"least_load_share", kLeastLoadShare},
      {"snapshot_seconds_per_gb", result.SnapshotSecondsPerGb()},
      {"most_snapshot_seconds_per_gb", kMostSnapshotSecondsPerGb},
      {"save_bytes_per_second", result.BytesPerSecond(result.save_seconds)}};
  absl::PrintF("%s\n", json.dump());
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const Result result, Measure(options));
  options.json() ? PrintJson(options, result) : PrintText(options, result);
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "checkpoint", "Snapshot, save and load of a GPT-2 of width 1024, beside memcpy",
      [](CLI::App& command, Options& options) {
        command
            .add_option("--layers", options.layers,
                        "Blocks: 0.15 GB each beside 0.63 GB; needs twice that in memory and once "
                        "more for the page cache")
            ->check(CLI::Range(1, 1000));
        command.add_option("--threads", options.threads, "Threads, of memcpy too")
            ->check(CLI::Range(1, 1024));
        command.add_option("--runs", options.runs, "The best of so many runs counts")
            ->check(CLI::Range(1, 1000));
        command.add_option("--directory", options.directory,
                           "Where to write, in a folder that is removed again; default: the "
                           "system's for temporary files");
      },
      Run);
}

}  // namespace takt::bench::checkpoint_command
