// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "takt/v1/local_model.pb.h"

namespace takt::cli {

// A takt-worker that runs a model for this command (worker/inference/model_child.h). It ends with
// the command, and the destructor kills it and waits until it is gone. Its errors of the machine
// go to the stderr of the command. One caller at a time, except for Kill.
class ModelChild final {
 public:
  // program_directory: where takt-worker is. Errors: kInternal (it cannot be started).
  static absl::StatusOr<std::unique_ptr<ModelChild>> Start(const std::string& program_directory,
                                                           const v1::LocalModelRequest& request);
  ~ModelChild();
  ModelChild(const ModelChild&) = delete;
  ModelChild& operator=(const ModelChild&) = delete;

  // Waits for the next answer. Errors: the failure that the child answered; kInternal (it ended
  // without its last answer: the message says how); kCancelled (it was killed by Kill).
  absl::StatusOr<v1::LocalModelAnswer> Next();

  // Ends the child at once. Any thread, also while another waits in Next.
  void Kill();

 private:
  ModelChild(pid_t pid, FileDescriptor pid_fd, FileDescriptor answers);
  absl::Status Ended();

  const pid_t pid_;
  const FileDescriptor pid_fd_;  // of the child, so that a signal reaches no other process
  const FileDescriptor answers_;
  google::protobuf::io::FileInputStream stream_;  // reads answers_
  bool reaped_ = false;
  std::atomic<bool> killed_ = false;
};

}  // namespace takt::cli
