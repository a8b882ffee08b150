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
// model.safetensors.index.json names. Files are mapped, so only headers and the tensors that
// somebody reads are ever fetched; they must not change meanwhile. Move-only; immutable: safe from
// any thread.
class HfFolder {
 public:
  // What to open for a path inside the folder: where links may not lead out of a root, this is
  // where to refuse.
  using Resolve = std::function<absl::StatusOr<std::string>(const std::string& path)>;

  // Errors: of `resolve`; kNotFound: neither file is there; kInvalidArgument: a malformed index or
  // safetensors file, an index that names an absent file or one that lacks the tensor, a tensor in
  // two files. Messages name the file.
  static absl::StatusOr<HfFolder> Open(const std::string& directory, const Resolve& resolve);
  static absl::StatusOr<HfFolder> Open(const std::string& directory);  // links lead anywhere

  // nullptr: there is none. Names with and without "transformer." are the same; what nobody asks
  // for (attention masks, rotary frequencies, a tied head) is nobody's business.  Valid as long as
  // this object.
  const Tensor* Find(std::string_view name) const;

  // The same where a tensor of this shape and one of the formats of weights must be there.
  // Errors: kInvalidArgument: there is none, or it is another, and what it is.
  absl::StatusOr<const Tensor*> Require(std::string_view name,
                                        std::span<const std::int64_t> shape) const;

  // The format that these tensors have in common, else F32, which holds the values of all formats.
  // What is not there does not count.
  FloatFormat CommonFormat(std::span<const std::string> names) const;

 private:
  struct File {
    MappedFile mapped;
    SafetensorsView view;
  };
  struct Place {
    const Tensor* tensor;  // in a view of files_
    std::string file;      // name of
  };

  absl::Status OpenFile(const std::string& directory, const std::string& name,
                        const Resolve& resolve);
  absl::Status OpenIndexed(const std::string& directory, const Resolve& resolve);

  std::vector<File> files_;
  std::map<std::string, Place, std::less<>> tensors_;
};

}  // namespace takt::checkpoint
