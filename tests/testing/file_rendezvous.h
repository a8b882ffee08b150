// SPDX-License-Identifier: Apache-2.0
// Where ranks that are processes of one test or benchmark find each other: a file for each key in
// one directory.
#pragma once

#include <string>

#include "worker/transport/transport.h"

namespace takt::testing {

// Thread-safe. directory: exists, and is removed by whoever made it.
class FileRendezvous final : public transport::Rendezvous {
 public:
  explicit FileRendezvous(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override;

 private:
  std::string Path(const std::string& key) const;

  const std::string directory_;
};

}  // namespace takt::testing
