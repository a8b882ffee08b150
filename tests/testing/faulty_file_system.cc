// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/faulty_file_system.h"

#include <utility>

#include "common/base/status.h"

namespace takt::testing {

class FaultyFileSystem::File final : public worker_checkpoint::WritableFile {
 public:
  File(FaultyFileSystem& owner, std::unique_ptr<WritableFile> base)
      : owner_(owner), base_(std::move(base)) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    const absl::Status fault = owner_.Next();
    if (fault.ok()) return base_->Append(bytes);
    base_->Append(bytes.first(bytes.size() / 2)).IgnoreError();
    return fault;
  }
  absl::Status Sync() override {
    RETURN_IF_ERROR(owner_.Next());
    return base_->Sync();
  }
  absl::Status Close() override {
    RETURN_IF_ERROR(owner_.Next());
    return base_->Close();
  }

 private:
  FaultyFileSystem& owner_;
  const std::unique_ptr<WritableFile> base_;
};

void FaultyFileSystem::Fail(int first, int last, absl::Status error) {
  calls_ = 0;
  first_ = first;
  last_ = last;
  error_ = std::move(error);
}

void FaultyFileSystem::Before(int call, std::function<void()> hook) {
  calls_ = 0;
  hook_at_ = call;
  hook_ = std::move(hook);
}

absl::Status FaultyFileSystem::Next() {
  ++calls_;
  if (calls_ == hook_at_ && hook_ != nullptr) std::exchange(hook_, nullptr)();
  return calls_ >= first_ && calls_ <= last_ ? error_ : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<worker_checkpoint::WritableFile>> FaultyFileSystem::Create(
    const std::string& path) {
  RETURN_IF_ERROR(Next());
  ASSIGN_OR_RETURN(std::unique_ptr<worker_checkpoint::WritableFile> file, base_.Create(path));
  return std::make_unique<File>(*this, std::move(file));
}

absl::Status FaultyFileSystem::CreateDirectory(const std::string& path) {
  RETURN_IF_ERROR(Next());
  return base_.CreateDirectory(path);
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(Next());
  return base_.Rename(from, to);
}

absl::Status FaultyFileSystem::Exchange(const std::string& a, const std::string& b) {
  RETURN_IF_ERROR(Next());
  return may_exchange_ ? base_.Exchange(a, b) : absl::UnimplementedError("exchange");
}

absl::Status FaultyFileSystem::Symlink(const std::string& target, const std::string& path) {
  RETURN_IF_ERROR(Next());
  return base_.Symlink(target, path);
}

absl::StatusOr<std::vector<std::string>> FaultyFileSystem::List(const std::string& directory) {
  RETURN_IF_ERROR(Next());
  return base_.List(directory);
}

absl::Status FaultyFileSystem::Remove(const std::string& path) {
  RETURN_IF_ERROR(Next());
  return base_.Remove(path);
}

absl::Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  RETURN_IF_ERROR(Next());
  return base_.SyncDirectory(path);
}

}  // namespace takt::testing
