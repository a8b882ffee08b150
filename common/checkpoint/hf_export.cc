// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/hf_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_descriptor.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/hf_folder.h"
#include "common/checkpoint/hf_index.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/hf_config.h"
#include "common/model/hf_config_text.h"

namespace takt::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kPieceElements = 1 << 16;

// A new file that is written and synced. Without Finish the destructor only closes it.
class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Create(const std::string& path) {
    FileDescriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
    return OutputFile(path, std::move(fd));
  }

  absl::Status Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return absl::OkStatus();
  }
  absl::Status Append(std::string_view text) {
    return Append(std::as_bytes(std::span(text.data(), text.size())));
  }
  absl::Status Finish() {
    const bool synced = fsync(fd_.get()) == 0;
    const int error = errno;
    const bool closed = fd_.Close();
    if (synced && closed) return absl::OkStatus();
    return absl::ErrnoToStatus(synced ? errno : error, absl::StrCat("cannot write ", path_));
  }

 private:
  OutputFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  FileDescriptor fd_;
};

absl::Status WriteText(const std::string& path, std::string_view text) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  RETURN_IF_ERROR(file.Append(text));
  return file.Finish();
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
}

// The tensors of the checkpoint, in f32, that one file will hold.
using Shard = std::vector<const Tensor*>;

std::int64_t BytesAs(FloatFormat format, const Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.bytes.size() / sizeof(float) * BytesOf(format));
}

// Divides tensors over files as Hugging Face does: in the model's order, a file ends before the
// tensor that would make it too large.
std::vector<Shard> Divide(const std::vector<const Tensor*>& tensors, FloatFormat format,
                          std::int64_t max_bytes) {
  std::vector<Shard> shards(1);
  std::int64_t bytes = 0;
  for (const Tensor* tensor : tensors) {
    const std::int64_t more = BytesAs(format, *tensor);
    if (!shards.back().empty() && bytes + more > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += more;
  }
  return shards;
}

absl::Status AppendConverted(const Tensor& tensor, FloatFormat format, OutputFile& file) {
  std::vector<float> values(kPieceElements);
  std::vector<std::byte> converted(kPieceElements * BytesOf(format));
  for (std::span<const std::byte> rest = tensor.bytes; !rest.empty();) {
    const std::size_t count = std::min(rest.size() / sizeof(float), kPieceElements);
    const std::span<float> piece = std::span(values).first(count);
    const std::span<std::byte> out = std::span(converted).first(count * BytesOf(format));
    ReadFloats(FloatFormat::kF32, rest.first(count * sizeof(float)), piece);
    WriteFloats(format, piece, out);
    RETURN_IF_ERROR(file.Append(out));
    rest = rest.subspan(count * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status WriteShard(const std::string& path, const Shard& shard, FloatFormat format) {
  std::map<std::string, const Tensor*> sources;
  std::vector<Tensor> outputs;  // only the size of their bytes is used
  for (const Tensor* tensor : shard) {
    sources[tensor->name] = tensor;
    outputs.push_back(
        {.name = tensor->name,
         .dtype = std::string(DtypeOf(format)),
         .shape = tensor->shape,
         .bytes = tensor->bytes.first(static_cast<std::size_t>(BytesAs(format, *tensor)))});
  }
  SortTensors(outputs);
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  RETURN_IF_ERROR(file.Append(FormatSafetensorsHeader(outputs, {{"format", "pt"}})));
  for (const Tensor& output : outputs) {
    RETURN_IF_ERROR(AppendConverted(*sources.at(output.name), format, file));
  }
  return file.Finish();
}

// Finds all tensors of the model, in its order.
absl::StatusOr<std::vector<const Tensor*>> TensorsOf(const model::Model& model,
                                                     const HfFolder& weights) {
  std::vector<const Tensor*> tensors;
  for (const model::Parameter* parameter : model.AllParameters()) {
    ASSIGN_OR_RETURN(const Tensor* tensor, weights.Require(parameter->name, parameter->shape));
    if (tensor->dtype != DtypeOf(FloatFormat::kF32)) {
      return absl::DataLossError(
          absl::StrCat(parameter->name, " must be F32 in a checkpoint, it is ", tensor->dtype));
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

// Writes the weights to `directory` and lists them in `result`.
absl::Status WriteWeights(const std::string& directory, const std::vector<Shard>& shards,
                          Export& result) {
  const int count = static_cast<int>(shards.size());
  WeightMap weight_map;
  for (int i = 0; i < count; ++i) {
    const Shard& shard = shards[static_cast<std::size_t>(i)];
    const std::string name = count == 1 ? kWeightsFile : ShardName("model", i, count);
    RETURN_IF_ERROR(WriteShard(absl::StrCat(directory, "/", name), shard, result.format));
    result.files.push_back(name);
    for (const Tensor* tensor : shard) {
      weight_map[tensor->name] = name;
      result.tensor_bytes += BytesAs(result.format, *tensor);
    }
  }
  if (count == 1) return absl::OkStatus();
  result.files.push_back(kIndexFile);
  return WriteText(absl::StrCat(directory, "/", kIndexFile),
                   FormatHfIndex(weight_map, result.tensor_bytes));
}

absl::Status SyncDirectory(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  if (fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", path));
}

// Makes a folder under a temporary name and renames it at the end. If it is not finished, the
// destructor removes it.
class NewFolder {
 public:
  static absl::StatusOr<NewFolder> Create(const std::string& out) {
    std::error_code error;
    fs::path place = fs::absolute(out, error).lexically_normal();
    if (!place.has_filename()) place = place.parent_path();  // the path ended in a slash
    const bool there = fs::exists(fs::symlink_status(place, error));
    if (there &&
        !(fs::is_directory(fs::symlink_status(place, error)) && fs::is_empty(place, error))) {
      return absl::AlreadyExistsError(absl::StrCat(
          place.string(), " is there already and is no empty folder; name another, or remove it"));
    }
    fs::create_directories(place.parent_path(), error);
    const std::string partial = absl::StrCat(place.string(), ".partial-", getpid());
    if (!error && fs::create_directory(partial, error)) return NewFolder(place, partial);
    return absl::ErrnoToStatus(error ? error.value() : EEXIST,
                               absl::StrCat("cannot create ", partial));
  }
  NewFolder(NewFolder&& other) noexcept
      : place_(std::move(other.place_)), partial_(std::exchange(other.partial_, "")) {}
  NewFolder& operator=(NewFolder&&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (!partial_.empty()) fs::remove_all(partial_, ignored);
  }

  const std::string& partial() const { return partial_; }

  absl::Status Finish() {
    RETURN_IF_ERROR(SyncDirectory(partial_));
    if (rename(partial_.c_str(), place_.c_str()) != 0) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat("cannot rename ", partial_, " to ", place_.string()));
    }
    partial_.clear();
    return SyncDirectory(place_.parent_path().string());
  }

 private:
  NewFolder(fs::path place, std::string partial)
      : place_(std::move(place)), partial_(std::move(partial)) {}

  fs::path place_;
  std::string partial_;
};

// Opens a step whose files are all as its manifest says. They are verified before their headers are
// read: what is wrong with a header says less than its hash. kDataLoss: the step is damaged.
absl::StatusOr<StepFiles> OpenWhole(const std::string& path) {
  const auto verify = [&]() -> absl::StatusOr<StepFiles> {
    ASSIGN_OR_RETURN(const Manifest manifest, ReadCompleteStep(path));
    for (const FileEntry& file : manifest.files) RETURN_IF_ERROR(VerifyFile(path, file));
    return StepFiles::Open(path);
  };
  absl::StatusOr<StepFiles> step = verify();
  if (IsDamage(step.status())) return absl::DataLossError(step.status().message());
  return step;
}

}  // namespace

absl::StatusOr<Export> ExportHuggingFace(const ExportOptions& options) {
  const std::string& from = options.step_directory;
  ASSIGN_OR_RETURN(NewFolder folder, NewFolder::Create(options.out));
  ASSIGN_OR_RETURN(const StepFiles step, OpenWhole(from));
  if (step.manifest().Find(kConfigFile) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(from, " holds no model: the layers of its job are emulated"));
  }
  const std::string config_path = absl::StrCat(from, "/", kConfigFile);
  ASSIGN_OR_RETURN(const std::string config_text, ReadText(config_path));
  ASSIGN_OR_RETURN(const model::ModelConfig config, model::ParseHfConfig(config_text, config_path));
  if (config.mixture.has_value() && config.mixture->scores == model::RouterScores::kSigmoid) {
    return absl::FailedPreconditionError(
        absl::StrCat(from,
                     " has experts with sigmoid scores and a bias, which no Hugging Face "
                     "family of Takt can hold; name it in model.init_from, or generate "
                     "from it, as it is"));
  }
  ASSIGN_OR_RETURN(const model::Model model, model::BuildModel(config, /*microbatch=*/1));
  ASSIGN_OR_RETURN(const HfFolder weights, HfFolder::Open(from));
  ASSIGN_OR_RETURN(const std::vector<const Tensor*> tensors, TensorsOf(model, weights));

  const FloatFormat recorded =
      FloatFormatOfTorchDtype(model::TorchDtypeIn(config_text)).value_or(FloatFormat::kF32);
  Export result{.step = step.manifest().step,
                .format = options.format.value_or(recorded),
                .files = {kConfigFile, "generation_config.json"}};
  RETURN_IF_ERROR(
      WriteText(absl::StrCat(folder.partial(), "/", result.files[0]),
                model::FormatHfConfig(
                    config, {.torch_dtype = TorchDtypeOf(result.format), .source = config_text})));
  RETURN_IF_ERROR(WriteText(absl::StrCat(folder.partial(), "/", result.files[1]),
                            model::FormatGenerationConfig(config_text)));
  RETURN_IF_ERROR(WriteWeights(folder.partial(),
                               Divide(tensors, result.format, options.max_shard_bytes), result));
  RETURN_IF_ERROR(folder.Finish());
  return result;
}

}  // namespace takt::checkpoint
