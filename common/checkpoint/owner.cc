// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/owner.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/sequential_file.h"

namespace takt::checkpoint {
namespace {

constexpr std::string_view kVersionLine = "takt checkpoint owner 1";
constexpr std::string_view kEpochVersionLine = "takt checkpoint epoch 1";
constexpr std::string_view kJobId = "job_id ", kJob = "job ", kGeneration = "generation ";
constexpr std::string_view kEpoch = "epoch ";
constexpr std::int64_t kMaxBytes = 4096;

std::string ValueOf(const std::string& line, std::string_view key) {
  return line.starts_with(key) ? line.substr(key.size()) : std::string();
}

// Returns nullopt if the file does not exist, and an empty text if it is too large to be ours.
absl::StatusOr<std::optional<std::string>> ReadSmallFile(const std::string& path) {
  absl::StatusOr<SequentialFile> file = SequentialFile::Open(path);
  if (absl::IsNotFound(file.status())) return std::nullopt;
  RETURN_IF_ERROR(file.status());
  std::string text;
  if (file->size() <= kMaxBytes) {
    text.resize(static_cast<std::size_t>(file->size()));
    RETURN_IF_ERROR(file->Read(std::as_writable_bytes(std::span(text))));
  }
  return std::optional<std::string>(std::move(text));
}

}  // namespace

std::string FormatOwner(const Owner& owner) {
  return absl::StrCat(std::string(kVersionLine), "\n", std::string(kJobId), owner.job_id, "\n",
                      std::string(kJob), owner.job, "\n", std::string(kGeneration),
                      owner.generation.value(), "\n");
}

absl::StatusOr<Owner> ParseOwner(std::string_view text, std::string_view name) {
  const std::vector<std::string> lines = absl::StrSplit(std::string(text), '\n');
  Owner owner;
  std::int64_t generation = 0;
  if (lines.size() == 5 && absl::SimpleAtoi(ValueOf(lines[3], kGeneration), &generation)) {
    owner = {.job_id = ValueOf(lines[1], kJobId),
             .job = ValueOf(lines[2], kJob),
             .generation = Generation(generation)};
  }
  if (!owner.job_id.empty() && FormatOwner(owner) == text) return owner;
  return absl::DataLossError(
      absl::StrCat(std::string(name),
                   " does not say which job owns the directory; remove it if no other job does"));
}

absl::StatusOr<std::optional<Owner>> ReadOwner(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kOwnerFile);
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadSmallFile(path));
  if (!text.has_value()) return std::nullopt;
  ASSIGN_OR_RETURN(Owner owner, ParseOwner(*text, path));
  return std::optional<Owner>(std::move(owner));
}

std::string FormatEpoch(const Owner& owner) {
  return absl::StrCat(std::string(kEpochVersionLine), "\n", std::string(kJobId), owner.job_id, "\n",
                      std::string(kGeneration), owner.generation.value(), "\n", std::string(kEpoch),
                      owner.epoch, "\n");
}

absl::StatusOr<std::int64_t> ReadEpoch(const std::string& directory, const Owner& owner) {
  const std::string path = absl::StrCat(directory, "/", kEpochFile);
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadSmallFile(path));
  if (!text.has_value()) return 0;
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  Owner noted;
  std::int64_t generation = 0;
  if (lines.size() == 5 && absl::SimpleAtoi(ValueOf(lines[2], kGeneration), &generation) &&
      absl::SimpleAtoi(ValueOf(lines[3], kEpoch), &noted.epoch)) {
    noted.job_id = ValueOf(lines[1], kJobId);
    noted.generation = Generation(generation);
  }
  if (noted.job_id.empty() || FormatEpoch(noted) != *text) {
    return absl::DataLossError(absl::StrCat(
        path, " does not say which coordinator may change the directory; remove it if the job ",
        owner.job, " has one coordinator"));
  }
  const bool same = noted.job_id == owner.job_id && noted.generation == owner.generation;
  return same ? noted.epoch : 0;
}

}  // namespace takt::checkpoint
