// SPDX-License-Identifier: Apache-2.0
// Token files as windows of T = context tokens and their targets.
//
// Streams (bytes, uint16, uint32; little-endian, no header): window i is tokens[i*T, (i+1)*T), its
// targets are the same shifted by one, so n tokens make (n-1)/T windows. safetensors: `tokens` and
// `targets`, I32, [N,T] or [batches,B,T]; window i is row i; a target of -100 is not scored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::data {

inline constexpr std::int32_t kIgnoredTarget = -100;

struct TokenFileOptions {
  config::DataFormat format = config::DataFormat::kBytes;
  int context = 1;                   // T
  std::string field = "data.train";  // of the job spec, for errors
  std::string path;                  // for errors
};

// Borrows the file's bytes. Immutable: safe from any thread.
class TokenFile {
 public:
  // Errors: kInvalidArgument (FieldError): a size that is no whole number of tokens, fewer tokens
  // than one window needs, a safetensors file without the two tensors or with rows that are not
  // `context` long.
  static absl::StatusOr<TokenFile> Open(std::span<const std::byte> file, TokenFileOptions options);

  std::int64_t num_windows() const { return num_windows_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  int context() const { return options_.context; }

  // Reads the whole file once.
  // Errors: kInvalidArgument (FieldError) with the first token id that is not in 0 .. vocab-1, and
  // where it is.
  absl::Status CheckVocab(int vocab) const;

  // One global batch must not contain a window twice. Errors: kInvalidArgument (FieldError).
  absl::Status CheckHolds(int global_batch) const;

  // tokens, targets: [T], filled.  Precondition: 0 <= window < num_windows().
  void ReadWindow(std::int64_t window, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) const;

 private:
  // I32 or narrower little-endian values, one after the other.
  struct Values {
    std::span<const std::byte> bytes;
    int width = 1;
    std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()) / width; }
    std::uint32_t At(std::int64_t i) const;
    void Read(std::int64_t begin, std::span<std::int32_t> out) const;
  };

  explicit TokenFile(TokenFileOptions options) : options_(std::move(options)) {}
  absl::Status OpenStream(std::span<const std::byte> file, int width);
  absl::Status OpenSafetensors(std::span<const std::byte> file);
  absl::Status Bad(const char* key, std::string value, std::string rule, std::string fix) const;
  // Number of the first value that is not below `limit` (nor -100, if that is allowed); size() if
  // there is none.
  static std::int64_t FindOutside(const Values& values, std::uint32_t limit, bool allow_ignored);

  TokenFileOptions options_;
  Values tokens_;
  Values targets_;  // of safetensors; empty for streams, whose targets are their tokens
  std::int64_t num_tokens_ = 0;
  std::int64_t num_windows_ = 0;
};

}  // namespace takt::data
