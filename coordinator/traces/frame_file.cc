// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/frame_file.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace takt::traces {
namespace {

constexpr std::string_view kMagic = "takt-frames 1\n";
constexpr std::size_t kSizeBytes = 4;  // little-endian, before each frame
constexpr std::uint32_t kMostFrameBytes = 64u << 20;

void ReadFile(std::ifstream& file, std::vector<std::string>& frames) {
  std::string magic(kMagic.size(), '\0');
  if (!file.read(magic.data(), static_cast<std::streamsize>(magic.size())) || magic != kMagic)
    return;
  unsigned char bytes[kSizeBytes];
  while (file.read(reinterpret_cast<char*>(bytes), kSizeBytes)) {
    std::uint32_t size = 0;
    for (std::size_t i = 0; i < kSizeBytes; ++i) size |= std::uint32_t{bytes[i]} << (8 * i);
    if (size > kMostFrameBytes) return;
    std::string frame(size, '\0');
    if (!file.read(frame.data(), size)) return;
    frames.push_back(std::move(frame));
  }
}

}  // namespace

absl::Status FrameFile::Append(std::string_view frame) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path_, error);
  const bool is_new = static_cast<bool>(error) || size == 0;
  if (!is_new && static_cast<std::int64_t>(size + frame.size()) > max_bytes_ / 2) {
    std::filesystem::rename(path_, path_ + ".old", error);
    return Append(frame);
  }
  std::string record(is_new ? kMagic : "");
  for (std::size_t i = 0; i < kSizeBytes; ++i) {
    record.push_back(static_cast<char>(frame.size() >> (8 * i)));
  }
  record.append(frame);
  std::ofstream file(path_, std::ios::binary | std::ios::app);
  file.write(record.data(), static_cast<std::streamsize>(record.size()));
  file.flush();
  if (file.good()) return absl::OkStatus();
  const int cause = errno;
  file.close();
  // Otherwise the next frame would be read as the rest of this one.
  std::filesystem::resize_file(path_, is_new ? 0 : size, error);
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", std::strerror(cause)));
}

FrameReader FrameFile::Open() const {
  FrameReader reader;
  reader.old_.open(path_ + ".old", std::ios::binary);
  reader.newest_.open(path_, std::ios::binary);
  return reader;
}

std::vector<std::string> FrameReader::Read() {
  std::vector<std::string> frames;
  ReadFile(old_, frames);
  ReadFile(newest_, frames);
  return frames;
}

}  // namespace takt::traces
