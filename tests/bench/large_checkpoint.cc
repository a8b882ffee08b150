// SPDX-License-Identifier: Apache-2.0
// Saves and verifies a checkpoint of the size of Llama 70B, with little memory and little space on
// the disk. It emulates the ranks one after the other, all values are 0, and the files are sparse.
// Then it exports a checkpoint of a few of its blocks as a Hugging Face folder, which is not
// sparse.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/float_formats.h"
#include "common/checkpoint/hf_export.h"
#include "common/checkpoint/layout.h"
#include "common/layout/rank_layout.h"
#include "common/mesh/mesh.h"
#include "common/model/hf_config_text.h"
#include "common/model/model.h"
#include "common/plan/plan.h"
#include "tests/bench/anonymous_memory.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/table.h"
#include "tests/bench/temporary_folder.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/parallel.h"
#include "worker/checkpoint/save.h"

namespace takt::bench::large_checkpoint_command {
namespace {

// The limit for this process, which plans the job, writes the parts of all ranks, and reads
// everything back.
constexpr std::int64_t kMostMemory = std::int64_t{1} << 30;
// The limit for the export of a model of any size.
constexpr std::int64_t kMostForExport = std::int64_t{16} << 20;

struct Options : CommonOptions {
  int layers = 80, pipeline = 4, data = 4, tensor = 4, threads = 2, exported_layers = 4;
  std::string directory;
};

absl::Status Failed(const char* what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

// A file that leaves blocks of zeros out, so that they take no space on the disk.
class SparseFile final : public worker_checkpoint::WritableFile {
 public:
  SparseFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~SparseFile() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    const bool zeros =
        bytes.empty() || (bytes[0] == std::byte{0} &&
                          std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
    while (!zeros && !bytes.empty()) {
      const ssize_t count = pwrite(fd_, bytes.data(), bytes.size(), size_);
      if (count < 0) return Failed("write", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      size_ += count;
    }
    size_ += std::ssize(bytes);
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return ftruncate(fd_, size_) == 0 ? absl::OkStatus() : Failed("extend", path_);
  }
  absl::Status Close() override {
    return close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : Failed("close", path_);
  }

 private:
  const std::string path_;
  int fd_;
  off_t size_ = 0;
};

// The system's file system, except that it creates sparse files.
class SparseFileSystem final : public worker_checkpoint::FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<worker_checkpoint::WritableFile>> Create(
      const std::string& path) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return Failed("create", path);
    return std::make_unique<SparseFile>(path, fd);
  }
  absl::Status CreateDirectory(const std::string& path) override {
    return files_->CreateDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_->Rename(from, to);
  }
  absl::Status Exchange(const std::string& a, const std::string& b) override {
    return files_->Exchange(a, b);
  }
  absl::Status Symlink(const std::string& target, const std::string& path) override {
    return files_->Symlink(target, path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return files_->List(directory);
  }
  absl::Status Remove(const std::string& path) override { return files_->Remove(path); }
  absl::Status SyncDirectory(const std::string& path) override {
    return files_->SyncDirectory(path);
  }

 private:
  const std::unique_ptr<worker_checkpoint::FileSystem> files_ =
      worker_checkpoint::CreatePosixFileSystem();
};

// Memory full of zeros. It is only read, so the kernel keeps one page for all of it.
class Zeros {
 public:
  explicit Zeros(std::size_t count)
      : bytes_(count * sizeof(float)),
        memory_(
            mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    TAKT_CHECK(memory_ != MAP_FAILED);
  }
  ~Zeros() { munmap(memory_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  std::span<const float> First(std::int64_t count) const {
    return {static_cast<const float*>(memory_), static_cast<std::size_t>(count)};
  }

 private:
  const std::size_t bytes_;
  void* const memory_;
};

// Returns a job that trains Llama 3.1 70B, with any number of blocks.
config::JobSpec JobOf(const Options& options) {
  config::JobSpec job;
  job.name = "llama-70b";
  job.model = {.family = model::Family::kLlama,
               .layers = options.layers,
               .hidden = 8192,
               .heads = 64,
               .kv_heads = 8,
               .inner = 28672,
               .context = 8192,
               .positions = 8192,
               .vocab = 128256,
               .tied_head = false,
               .rope_theta = 500000};
  job.precision = config::Precision::kBf16;
  job.microbatch = 1;
  job.global_batch = 4 * options.pipeline * options.data;
  job.steps = 1;
  job.parallelism.pipeline = options.pipeline;
  job.parallelism.data = options.data;
  job.parallelism.tensor = options.tensor;
  job.parallelism.schedule = "1f1b";
  job.parallelism.shard = config::Shard::kOptimizer;
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  job.parallelism.recompute = {model::Recompute::kFull};
  return job;
}

// Returns what each rank writes, by rank. model: the whole model.
std::vector<std::vector<worker_checkpoint::LayerState>> PartsOf(const plan::Plan& plan,
                                                                const model::Model& model,
                                                                const Zeros& zeros) {
  std::map<Rank, std::vector<worker_checkpoint::LayerState>> by_rank;
  const mesh::Mesh& mesh = plan.mesh;
  for (const mesh::Stage& stage : plan.partition) {
    for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
      const int replica = layout::WriterOf(id, mesh.num_replicas());
      const TpRank tp = layout::WriterAmongSplit(id, mesh.num_replicas(), mesh.tp_size);
      const Rank writer = mesh.RankOf(stage.pp_rank, replica * mesh.tp_size + tp.value());
      worker_checkpoint::LayerState state{.layer = id};
      for (const model::Parameter& parameter : model.layers[id.value()].parameters) {
        const std::span<const float> values = zeros.First(parameter.elements());
        state.parameters.push_back(
            {.parameter = &parameter, .weight = values, .m = values, .v = values});
      }
      by_rank[writer].push_back(std::move(state));
    }
  }
  std::vector<std::vector<worker_checkpoint::LayerState>> parts;
  for (auto& [rank, layers] : by_rank) parts.push_back(std::move(layers));
  return parts;
}

class Seconds {
 public:
  // Returns the seconds since the last call, or since construction.
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Saves the parts of all ranks, and makes the checkpoint visible. Returns its directory.
absl::StatusOr<std::string> Save(const plan::Plan& plan, const Options& options,
                                 const std::string& folder, nlohmann::json& row) {
  ASSIGN_OR_RETURN(const model::Model model, model::BuildModel(JobOf(options).model, 1));
  std::int64_t longest = 0;
  for (const model::Layer& layer : model.layers) {
    for (const model::Parameter& parameter : layer.parameters)
      longest = std::max(longest, parameter.elements());
  }
  const Zeros zeros(static_cast<std::size_t>(longest));
  const auto parts = PartsOf(plan, model, zeros);
  using Texts = std::vector<worker_checkpoint::TextFile>;
  const Texts texts = {{checkpoint::kConfigFile, model::FormatHfConfig(model.config)},
                       {checkpoint::kIndexFile, checkpoint::FormatIndex(model)}};
  checkpoint::Manifest manifest{.job = "llama-70b", .generation = Generation(1), .step = StepId(1)};
  const std::string partial = absl::StrCat(
      folder, "/",
      checkpoint::PartialDirectoryName(manifest.step, manifest.job, manifest.generation));
  SparseFileSystem files;
  std::vector<std::vector<checkpoint::FileEntry>> saved(parts.size());
  RETURN_IF_ERROR(worker_checkpoint::RunOnThreads(
      options.threads, parts.size(), [&](std::size_t part) -> absl::Status {
        ASSIGN_OR_RETURN(saved[part],
                         worker_checkpoint::SaveShards(
                             files, {.directory = partial,
                                     .num_layers = static_cast<int>(model.layers.size()),
                                     .layers = parts[part],
                                     .texts = part == 0 ? texts : Texts()}));
        return absl::OkStatus();
      }));
  std::int64_t bytes = 0;
  for (const auto& part : saved) {
    for (const checkpoint::FileEntry& file : part) {
      bytes += file.bytes;
      manifest.files.push_back(file);
    }
  }
  ASSIGN_OR_RETURN(const std::string text, checkpoint::FormatManifest(manifest));
  RETURN_IF_ERROR(worker_checkpoint::Publish(files, folder, text, {.token = "bench"}).status());
  row["bytes"] = bytes;
  row["files"] = manifest.files.size();
  row["writers"] = parts.size();
  return absl::StrCat(folder, "/", checkpoint::StepDirectoryName(manifest.step));
}

absl::StatusOr<std::int64_t> BytesOnDisk(const std::string& path,
                                         const checkpoint::Manifest& manifest) {
  constexpr std::int64_t kBlock = 512;  // of st_blocks
  std::int64_t bytes = 0;
  for (const checkpoint::FileEntry& file : manifest.files) {
    struct stat info {};
    const std::string name = absl::StrCat(path, "/", file.name);
    if (stat(name.c_str(), &info) != 0) return Failed("look at", name);
    bytes += kBlock * info.st_blocks;
  }
  return bytes;
}

absl::StatusOr<nlohmann::json> Measure(const Options& options) {
  ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create(options.directory));
  Seconds seconds;
  nlohmann::json row;
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(JobOf(options), {.max_workers = options.pipeline * options.data *
                                                                  options.tensor}));
  row["mesh"] = mesh::ToString(plan.mesh);
  row["plan_seconds"] = seconds.Lap();
  ASSIGN_OR_RETURN(const std::string path, Save(plan, options, folder->path(), row));
  row["save_seconds"] = seconds.Lap();
  ASSIGN_OR_RETURN(const checkpoint::StepFiles step, checkpoint::StepFiles::Open(path));
  const std::vector<checkpoint::FileEntry>& files = step.manifest().files;
  RETURN_IF_ERROR(worker_checkpoint::RunOnThreads(
      options.threads, files.size(), [&](std::size_t file) { return step.Verify(files[file]); }));
  row["verify_seconds"] = seconds.Lap();
  ASSIGN_OR_RETURN(row["disk_bytes"], BytesOnDisk(path, step.manifest()));
  row["measured"] = PeakRssBytes();
  row["limit"] = kMostMemory;
  row["ratio"] = static_cast<double>(PeakRssBytes()) / static_cast<double>(kMostMemory);
  row["holds"] = PeakRssBytes() <= kMostMemory;
  return row;
}

// Exports a checkpoint of options.exported_layers blocks, in bf16.
absl::Status MeasureExport(Options options, nlohmann::json& row) {
  options.layers = options.exported_layers;
  ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create(options.directory));
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(JobOf(options), {.max_workers = options.pipeline * options.data *
                                                                  options.tensor}));
  nlohmann::json of_save;
  ASSIGN_OR_RETURN(const std::string path, Save(plan, options, folder->path(), of_save));
  Seconds seconds;
  const AnonymousMemory memory;
  ASSIGN_OR_RETURN(const checkpoint::Export written,
                   checkpoint::ExportHuggingFace({.step_directory = path,
                                                  .out = absl::StrCat(folder->path(), "/hf"),
                                                  .format = checkpoint::FloatFormat::kBf16}));
  row["export_seconds"] = seconds.Lap();
  row["export_bytes"] = written.tensor_bytes;
  row["export_measured"] = memory.MostGrowth();
  row["export_limit"] = kMostForExport;
  row["holds"] = row.at("holds").get<bool>() && memory.MostGrowth() <= kMostForExport;
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  constexpr double kMib = 1.0 / (1 << 20);
  ASSIGN_OR_RETURN(nlohmann::json row, Measure(options));
  for (const char* const key :
       {"export_seconds", "export_bytes", "export_measured", "export_limit"})
    row[key] = nullptr;
  if (options.exported_layers > 0) RETURN_IF_ERROR(MeasureExport(options, row));
  Table table(options.json(),
              {{.heading = "mesh", .key = "mesh", .width = 16},
               {.heading = "GB", .key = "bytes", .precision = 1, .scale = 1e-9},
               {.heading = "files", .key = "files"},
               {.heading = "writers", .key = "writers"},
               {.heading = "disk MiB", .key = "disk_bytes", .scale = kMib},
               {.heading = "plan s", .key = "plan_seconds", .precision = 1},
               {.heading = "save s", .key = "save_seconds", .precision = 1},
               {.heading = "verify s", .key = "verify_seconds", .precision = 1},
               {.heading = "memory MiB", .key = "measured", .scale = kMib},
               {.heading = "limit MiB", .key = "limit", .scale = kMib},
               {.heading = "export GB", .key = "export_bytes", .precision = 1, .scale = 1e-9},
               {.heading = "s", .key = "export_seconds", .precision = 1},
               {.heading = "MiB", .key = "export_measured", .precision = 1, .scale = kMib},
               {.heading = "limit MiB", .key = "export_limit", .scale = kMib}});
  const bool holds = row.at("holds").get<bool>();
  table.Add(row, holds ? "" : "over");
  table.End({});
  return holds ? absl::OkStatus()
               : absl::ResourceExhaustedError("the checkpoint took more memory than its limit");
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "large-checkpoint",
      "A checkpoint of the size of Llama 70B, in sparse files: planned, saved and verified in 1 "
      "GiB of memory; and the export of a smaller one",
      [](CLI::App& command, Options& options) {
        command.add_option("--layers", options.layers, "Blocks: 10 GB each")
            ->check(CLI::Range(1, 1000));
        command.add_option("--pipeline", options.pipeline, "Pipeline ranks of the mesh")
            ->check(CLI::Range(1, 80));
        command.add_option("--data", options.data, "Replicas of the mesh")
            ->check(CLI::Range(1, 64));
        command.add_option("--tensor", options.tensor, "Ranks that split each layer")
            ->check(CLI::IsMember({1, 2, 4, 8}));
        command
            .add_option("--threads", options.threads, "Threads that write, and threads that read")
            ->check(CLI::Range(1, 256));
        command
            .add_option("--exported-layers", options.exported_layers,
                        "Blocks of the model that is exported: 2 GB each, and 4 GB; 0: none is")
            ->check(CLI::Range(0, 1000));
        command.add_option("--directory", options.directory,
                           "Where to write, in a folder that is removed again; default: the "
                           "system's for temporary files");
      },
      Run);
}

}  // namespace takt::bench::large_checkpoint_command
