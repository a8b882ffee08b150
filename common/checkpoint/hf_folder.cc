// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/hf_index.h"

namespace takt::checkpoint {
namespace {

namespace fs = std::filesystem;

// The files of GPT-2 itself leave this prefix out.
constexpr std::string_view kPrefix = "transformer.";

std::string Shown(std::string_view name) {
  return absl::Utf8SafeCHexEscape(std::string(name.substr(0, 100)));
}

std::string Describe(std::string_view dtype, std::span<const std::int64_t> shape) {
  return absl::StrCat(std::string(dtype), " of shape [", absl::StrJoin(shape, ","), "]");
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

absl::StatusOr<MappedFile> Map(const std::string& path, const HfFolder::Resolve& resolve) {
  ASSIGN_OR_RETURN(const std::string real, resolve(path));
  return MappedFile::OpenReal(real);
}

std::string_view Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

absl::StatusOr<HfFolder> HfFolder::Open(const std::string& directory, const Resolve& resolve) {
  HfFolder folder;
  if (Exists(absl::StrCat(directory, "/", kWeightsFile))) {
    RETURN_IF_ERROR(folder.OpenFile(directory, kWeightsFile, resolve));
  } else if (Exists(absl::StrCat(directory, "/", kIndexFile))) {
    RETURN_IF_ERROR(folder.OpenIndexed(directory, resolve));
  } else {
    return absl::NotFoundError(
        absl::StrCat(directory, " holds neither ", kWeightsFile, " nor ", kIndexFile));
  }
  return folder;
}

absl::StatusOr<HfFolder> HfFolder::Open(const std::string& directory) {
  return Open(directory, [](const std::string& path) {
    std::error_code ignored;  // opening the file gives a better error
    return fs::weakly_canonical(path, ignored).string();
  });
}

absl::Status HfFolder::OpenFile(const std::string& directory, const std::string& name,
                                const Resolve& resolve) {
  const std::string path = absl::StrCat(directory, "/", name);
  ASSIGN_OR_RETURN(MappedFile mapped, Map(path, resolve));
  ASSIGN_OR_RETURN(SafetensorsView view, SafetensorsView::Parse(mapped.bytes(), path));
  files_.push_back({.mapped = std::move(mapped), .view = std::move(view)});
  for (const Tensor& tensor : files_.back().view.tensors()) {
    const auto [it, is_new] = tensors_.emplace(tensor.name, Place{.tensor = &tensor, .file = name});
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds ", Shown(tensor.name), ", which ",
                                                   it->second.file,
                                                   " of the same folder holds too"));
  }
  return absl::OkStatus();
}

absl::Status HfFolder::OpenIndexed(const std::string& directory, const Resolve& resolve) {
  const std::string index_path = absl::StrCat(directory, "/", kIndexFile);
  ASSIGN_OR_RETURN(const MappedFile mapped, Map(index_path, resolve));
  const absl::StatusOr<WeightMap> weight_map = ParseHfIndex(Text(mapped));
  if (!weight_map.ok()) return Annotate(weight_map.status(), index_path);

  std::set<std::string> files;
  for (const auto& [tensor, file] : *weight_map) files.insert(file);
  for (const std::string& file : files) {
    if (!Exists(absl::StrCat(directory, "/", file))) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": names ", Shown(file), ", which is not in the folder"));
    }
    RETURN_IF_ERROR(OpenFile(directory, file, resolve));
  }
  for (const auto& [tensor, file] : *weight_map) {
    const auto it = tensors_.find(tensor);
    if (it != tensors_.end() && it->second.file == file) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        index_path, ": says that ", Shown(file), " holds ", Shown(tensor), ", which it does not"));
  }
  return absl::OkStatus();
}

const Tensor* HfFolder::Find(std::string_view name) const {
  auto it = tensors_.find(name);
  if (it == tensors_.end() && name.starts_with(kPrefix)) {
    it = tensors_.find(name.substr(kPrefix.size()));
  }
  return it == tensors_.end() ? nullptr : it->second.tensor;
}

absl::StatusOr<const Tensor*> HfFolder::Require(std::string_view name,
                                                std::span<const std::int64_t> shape) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("its weights must hold ", std::string(name), ", they do not"));
  }
  if (!FloatFormatOfDtype(tensor->dtype).has_value() ||
      !std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), " must be ",
                                                   Describe("F32, BF16 or F16", shape), ", it is ",
                                                   Describe(tensor->dtype, tensor->shape)));
  }
  return tensor;
}

FloatFormat HfFolder::CommonFormat(std::span<const std::string> names) const {
  std::optional<FloatFormat> common;
  for (const std::string& name : names) {
    const Tensor* tensor = Find(name);
    if (tensor == nullptr) continue;
    const std::optional<FloatFormat> format = FloatFormatOfDtype(tensor->dtype);
    if (!format.has_value() || (common.has_value() && common != format)) return FloatFormat::kF32;
    common = format;
  }
  return common.value_or(FloatFormat::kF32);
}

}  // namespace takt::checkpoint
