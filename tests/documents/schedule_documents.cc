// SPDX-License-Identifier: Apache-2.0
// schedule_documents DIR: writes the pages of docs/schedules to DIR.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/documents/schedule_pages.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: schedule_documents DIR\n");
    return 2;
  }
  const auto pages = takt::documents::SchedulePages();
  if (!pages.ok()) {
    std::fprintf(stderr, "%s\n", pages.status().ToString().c_str());
    return 1;
  }
  for (const auto& [name, text] : *pages) {
    const std::filesystem::path path = std::filesystem::path(argv[1]) / name;
    if (!(std::ofstream(path, std::ios::binary) << text).flush()) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      return 1;
    }
  }
}
