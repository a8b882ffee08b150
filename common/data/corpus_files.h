// SPDX-License-Identifier: Apache-2.0
// Finds the files that the path of a corpus names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::data {

struct CorpusFile {
  std::string file;   // real path
  std::string index;  // real path of PREFIX.idx, for megatron
};

struct CorpusPath {
  std::string field = "data.train.path";  // for errors
  std::string path;                       // as the job states it
  std::string data_root;
  config::DataFormat format = config::DataFormat::kBytes;
};

// A path that exists means that file, or all files of that directory with the format's extension:
// .safetensors; .bin for uint16, uint32, llmc and megatron; any for bytes. Hidden files and
// directories below it are left out. Any other path with * ? or [ is a pattern of the shell. For
// megatron PREFIX, PREFIX.bin and PREFIX.idx all name the same pair. The result is sorted by the
// bytes of the names. Errors, all with a FieldError: kInvalidArgument (a file is outside the root,
// or there are too many), kFailedPrecondition (there is no such file here, or the disk fails).
absl::StatusOr<std::vector<CorpusFile>> FindCorpusFiles(const CorpusPath& path);

}  // namespace takt::data
