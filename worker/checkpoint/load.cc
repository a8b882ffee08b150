// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/load.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/sequential_file.h"
#include "common/model/split_layers.h"
#include "worker/checkpoint/parallel.h"

namespace takt::worker_checkpoint {
namespace {

constexpr std::size_t kBlockBytes = 256 << 10;  // still in the second-level cache when it is hashed

// A tensor of a file, and where to put its floats: a run from number `whole` on at number `here` of
// the destination. The runs are in the order of the file.
struct Wanted {
  const model::Parameter* parameter = nullptr;
  std::span<float> destination;
  std::vector<model::ElementRun> runs;
};

struct FileToLoad {
  std::string name;
  std::map<std::string, Wanted, std::less<>> wanted;  // by tensor
};

std::string Described(std::string_view dtype, std::span<const std::int64_t> shape) {
  return absl::StrCat(std::string(dtype), " of shape [", absl::StrJoin(shape, ","), "]");
}

// Says what goes to `destination`: elements of what the rank has of a parameter, from this one on.
Wanted WantedOf(const model::Parameter& parameter, std::span<float> destination,
                std::size_t first_element) {
  Wanted wanted{.parameter = &parameter, .destination = destination};
  const auto first = static_cast<std::int64_t>(first_element),
             end = first + std::ssize(destination);
  const auto add = [&](const model::ElementRun& run) {
    const std::int64_t from = std::max(run.here, first), to = std::min(run.here + run.count, end);
    if (from < to) {
      wanted.runs.push_back(
          {.here = from - first, .whole = run.whole + (from - run.here), .count = to - from});
    }
    return absl::OkStatus();
  };
  const absl::Status added =
      parameter.by_word ? add({.count = parameter.elements()}) : model::ForEachRun(parameter, add);
  TAKT_CHECK(added.ok());
  std::ranges::sort(wanted.runs, {}, &model::ElementRun::whole);
  return wanted;
}

std::vector<FileToLoad> FilesOf(std::span<const LayerTarget> targets, int num_layers) {
  std::vector<FileToLoad> files;
  for (const LayerTarget& target : targets) {
    FileToLoad model{.name = checkpoint::ModelFile(target.layer, num_layers)};
    FileToLoad optimizer{.name = checkpoint::OptimizerFile(target.layer, num_layers)};
    for (const ParameterTarget& wanted : target.parameters) {
      const model::Parameter& parameter = *wanted.parameter;
      const auto elements = static_cast<std::size_t>(parameter.elements());
      const auto columns = elements / static_cast<std::size_t>(parameter.shape[0]);
      const std::size_t first = static_cast<std::size_t>(wanted.first_row) * columns;
      const auto want = [&](FileToLoad& file, std::string name, std::span<float> to,
                            std::size_t of_rows) {
        if (to.empty()) return;
        TAKT_CHECK(first + of_rows + to.size() <= elements);
        file.wanted[std::move(name)] = WantedOf(parameter, to, first + of_rows);
      };
      const std::size_t moment = wanted.first_moment;
      want(model, parameter.name, wanted.weight, wanted.first_weight);
      want(optimizer, checkpoint::FirstMomentName(parameter.name), wanted.m, moment);
      want(optimizer, checkpoint::SecondMomentName(parameter.name), wanted.v, moment);
      want(optimizer, checkpoint::LastUpdateName(parameter.name), wanted.last_update, moment);
    }
    if (!model.wanted.empty()) files.push_back(std::move(model));
    if (!optimizer.wanted.empty()) files.push_back(std::move(optimizer));
  }
  return files;
}

// Lets several threads fill the memory of a device. Thread-safe.
class DeviceWriter {
 public:
  explicit DeviceWriter(backend::MemoryBackend& device) : device_(device) {}
  absl::Status Write(std::span<const std::byte> from, std::byte* to) {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(device_.CopyFromHost(from, to));
    return device_.Synchronize();
  }

 private:
  std::mutex mutex_;
  backend::MemoryBackend& device_;  // guarded by mutex_
};

class FileLoader {
 public:
  // device: has the memory of the destinations; null: they are in host memory.
  FileLoader(const checkpoint::StepFiles& step, const FileToLoad& file, DeviceWriter* device)
      : step_(step),
        file_(file),
        device_(device),
        path_(absl::StrCat(step.path(), "/", file.name)) {}

  // Checks by the header that the file has what is wanted.
  absl::Status Check() const {
    const checkpoint::SafetensorsView* view = step_.View(file_.name);
    if (view == nullptr) return absl::DataLossError(absl::StrCat(path_, " is not in the manifest"));
    for (const auto& [name, wanted] : file_.wanted) {
      const checkpoint::Tensor* tensor = view->Find(name);
      if (tensor == nullptr)
        return absl::InvalidArgumentError(absl::StrCat(path_, ": must hold ", name));
      const std::vector<std::int64_t> shape = model::WholeShape(*wanted.parameter);
      if (tensor->dtype == "F32" && tensor->shape == shape) continue;
      return absl::InvalidArgumentError(absl::StrCat(path_, ": ", name, " must be ",
                                                     Described("F32", shape), ", it is ",
                                                     Described(tensor->dtype, tensor->shape)));
    }
    return absl::OkStatus();
  }

  // Precondition: Check returned OK.
  absl::Status Load() {
    const checkpoint::FileEntry& entry = *step_.manifest().Find(file_.name);
    const std::vector<checkpoint::Tensor>& tensors = step_.View(file_.name)->tensors();
    ASSIGN_OR_RETURN(checkpoint::SequentialFile file, checkpoint::SequentialFile::Open(path_));
    std::int64_t header_bytes = entry.bytes;
    for (const checkpoint::Tensor& tensor : tensors)
      header_bytes -= static_cast<std::int64_t>(tensor.bytes.size());
    RETURN_IF_ERROR(Skip(file, static_cast<std::size_t>(header_bytes)));
    for (const checkpoint::Tensor& tensor : tensors) {
      const auto wanted = file_.wanted.find(tensor.name);
      RETURN_IF_ERROR(wanted == file_.wanted.end()
                          ? Skip(file, tensor.bytes.size())
                          : ReadWanted(file, wanted->second, tensor.bytes.size()));
    }
    const std::string hash = hasher_.Digest();
    return hash == entry.xxh3_128 ? absl::OkStatus() : checkpoint::HashMismatch(path_, hash, entry);
  }

 private:
  // tensor_bytes: of the whole tensor.
  absl::Status ReadWanted(checkpoint::SequentialFile& file, const Wanted& wanted,
                          std::size_t tensor_bytes) {
    std::size_t at = 0;  // in the tensor
    for (const model::ElementRun& run : wanted.runs) {
      const std::size_t begin = static_cast<std::size_t>(run.whole) * sizeof(float);
      const std::span<std::byte> out = std::as_writable_bytes(wanted.destination.subspan(
          static_cast<std::size_t>(run.here), static_cast<std::size_t>(run.count)));
      RETURN_IF_ERROR(Skip(file, begin - at));
      RETURN_IF_ERROR(ReadInto(file, out));
      at = begin + out.size();
    }
    return Skip(file, tensor_bytes - at);
  }

  absl::Status ReadInto(checkpoint::SequentialFile& file, std::span<std::byte> out) {
    if (device_ == nullptr) return Read(file, out);
    block_.resize(kBlockBytes);
    while (!out.empty()) {
      const std::span<std::byte> block = std::span(block_).first(std::min(out.size(), kBlockBytes));
      RETURN_IF_ERROR(Read(file, block));
      RETURN_IF_ERROR(device_->Write(block, out.data()));
      out = out.subspan(block.size());
    }
    return absl::OkStatus();
  }

  absl::Status Read(checkpoint::SequentialFile& file, std::span<std::byte> out) {
    while (!out.empty()) {
      const std::span<std::byte> block = out.first(std::min(out.size(), kBlockBytes));
      RETURN_IF_ERROR(file.Read(block));
      hasher_.Add(block);
      out = out.subspan(block.size());
    }
    return absl::OkStatus();
  }

  // Reads what is not wanted, because the hash covers it.
  absl::Status Skip(checkpoint::SequentialFile& file, std::size_t bytes) {
    block_.resize(kBlockBytes);
    while (bytes > 0) {
      const std::size_t count = std::min(bytes, kBlockBytes);
      RETURN_IF_ERROR(Read(file, std::span(block_).first(count)));
      bytes -= count;
    }
    return absl::OkStatus();
  }

  const checkpoint::StepFiles& step_;
  const FileToLoad& file_;
  DeviceWriter* const device_;
  const std::string path_;
  checkpoint::Hasher hasher_;
  std::vector<std::byte> block_;  // for bytes that are not read directly into their destination
};

}  // namespace

absl::Status LoadLayers(const checkpoint::StepFiles& step, std::span<const LayerTarget> targets,
                        const LoadOptions& options) {
  std::vector<FileToLoad> files = FilesOf(targets, options.num_layers);
  // Checks that this is the right model before it reads gigabytes.
  std::optional<DeviceWriter> writer;
  if (options.device != nullptr) writer.emplace(*options.device);
  DeviceWriter* const device = writer.has_value() ? &*writer : nullptr;
  for (const FileToLoad& file : files) RETURN_IF_ERROR(FileLoader(step, file, device).Check());
  // The largest files come first, so that no thread begins one at the end.
  std::ranges::stable_sort(files, std::greater(), [&step](const FileToLoad& file) {
    return step.manifest().Find(file.name)->bytes;
  });
  return RunOnThreads(options.threads, files.size(),
                      [&](std::size_t i) { return FileLoader(step, files[i], device).Load(); });
}

absl::Status VerifyFiles(const checkpoint::StepFiles& step, std::span<const std::string> names,
                         int threads) {
  return RunOnThreads(threads, names.size(), [&](std::size_t i) -> absl::Status {
    const checkpoint::FileEntry* entry = step.manifest().Find(names[i]);
    if (entry == nullptr) {
      return absl::DataLossError(
          absl::StrCat(step.path(), "/", names[i], " is not in the manifest"));
    }
    return step.Verify(*entry);
  });
}

}  // namespace takt::worker_checkpoint
