// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/two_ranks.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace takt::gpu {

void RunTwoRanks(const std::string& label) {
  const std::filesystem::path directory =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat(label, "-", getpid());
  std::filesystem::create_directory(directory);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  pid_t ranks[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    std::string number = std::to_string(rank), where = directory.string();
    char option[] = "--rank";
    char* const arguments[] = {const_cast<char*>(program.c_str()), option, number.data(),
                               where.data(), nullptr};
    ASSERT_EQ(posix_spawn(&ranks[rank], program.c_str(), nullptr, nullptr, arguments, environ), 0);
  }
  for (const pid_t rank : ranks) {
    int status = 0;
    ASSERT_EQ(waitpid(rank, &status, 0), rank);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  std::filesystem::remove_all(directory);
}

int MainWithRanks(
    int argc, char** argv,
    absl::FunctionRef<absl::Status(int rank, const std::string& directory)> run_rank) {
  if (argc == 4 && std::strcmp(argv[1], "--rank") == 0) {
    const absl::Status status = run_rank(std::atoi(argv[2]), argv[3]);
    std::fprintf(stderr, "rank %s: %s\n", argv[2], status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace takt::gpu
