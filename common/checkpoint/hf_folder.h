// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mapped_file.h"
#include "common/checkpoint/float_formats.h"
#include "common/checkpoint/safetensors.h"

namespace takt::checkpoint {

// The weights of a Hugging Face folder: model.safetensors, or the files that
// model.safetensors.index.json names. It maps the files, so only headers and the tensors that are
// read are fetched; the files must not change meanwhile. Move-only; immutable: safe from any
// thread.
class HfFolder {
 public:
  // Returns the path to open for a path inside the folder. If links must not lead out of a root,
  // this function refuses them.
  using Resolve = std::function<absl::StatusOr<std::string>(const std::string& path)>;

  // Errors: those of `resolve`; kNotFound: neither file exists; kInvalidArgument: the index or a
  // safetensors file is malformed, the index names an absent file or one that lacks the tensor, or
  // a tensor is in two files. Messages name the file.
  static absl::StatusOr<HfFolder> Open(const std::string& directory, const Resolve& resolve);
  static absl::StatusOr<HfFolder> Open(const std::string& directory);  // links may lead anywhere

  // Returns nullptr if there is none. Names with and without "transformer." are the same. Tensors
  // that no caller requests (attention masks, rotary frequencies, a tied head) are ignored. The
  // result is valid as long as this object.
  const Tensor* Find(std::string_view name) const;

  // Returns a tensor that must have this shape and one of the formats of weights. kInvalidArgument:
  // there is none, or it differs; the message says how.
  absl::StatusOr<const Tensor*> Require(std::string_view name,
                                        std::span<const std::int64_t> shape) const;

  // Returns the common format of these tensors, else F32, which holds the values of all formats.
  // Missing tensors do not count.
  FloatFormat CommonFormat(std::span<const std::string> names) const;

 private:
  struct File {
    MappedFile mapped;
    SafetensorsView view;
  };
  struct Place {
    const Tensor* tensor;  // in a view of files_
    std::string file;      // its name
  };

  absl::Status OpenFile(const std::string& directory, const std::string& name,
                        const Resolve& resolve);
  absl::Status OpenIndexed(const std::string& directory, const Resolve& resolve);

  std::vector<File> files_;
  std::map<std::string, Place, std::less<>> tensors_;
};

}  // namespace takt::checkpoint
