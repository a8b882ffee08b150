// SPDX-License-Identifier: Apache-2.0
#include "tests/security/processes.h"

#include <arpa/inet.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace takt::security {

namespace {

namespace fs = std::filesystem;

constexpr char kListening[] = "0A";

std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"))) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// "0100007F:1267", as the kernel prints the words of an address in its own byte order.
std::string AddressOf(const std::string& hex) {
  const std::vector<std::string> parts = absl::StrSplit(hex, ':');
  const int port = std::stoi(parts[1], nullptr, 16);
  if (parts[0].size() != 8) return absl::StrCat("[", parts[0], "]:", port);
  const in_addr address{static_cast<in_addr_t>(std::stoul(parts[0], nullptr, 16))};
  return absl::StrCat(inet_ntoa(address), ":", port);
}

}  // namespace

std::string ProcFile(pid_t pid, const std::string& file) {
  std::ifstream stream(absl::StrCat("/proc/", pid, "/", file), std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

double ResidentMib(pid_t pid) {
  std::istringstream status(ProcFile(pid, "status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

int CountDescriptors(pid_t pid) {
  return static_cast<int>(std::distance(fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd")),
                                        fs::directory_iterator()));
}

std::vector<std::string> ListeningAddresses(pid_t pid) {
  const std::set<std::string> inodes = SocketInodes(pid);
  std::vector<std::string> addresses;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    std::istringstream lines(ProcFile(pid, table));
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      constexpr std::size_t kLocal = 1, kState = 3, kInode = 9;
      if (fields.size() > kInode && fields[kState] == kListening && inodes.contains(fields[kInode]))
        addresses.push_back(AddressOf(fields[kLocal]));
    }
  }
  std::ranges::sort(addresses);
  return addresses;
}

}  // namespace takt::security
