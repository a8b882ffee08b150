// SPDX-License-Identifier: Apache-2.0
#include "worker/session/kernel_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/backend/plan_cache.h"
#include "worker/backend/plan_cache_text.h"
#include "worker/checkpoint/commit.h"
#include "worker/transport/handshake.h"

namespace takt::session {
namespace {

using backend::PlanCache;
using backend::PlanTarget;

// How long a rank waits for rank 0 to load a checkpoint and to time new shapes. If rank 0 dies, the
// wait ends earlier in another way.
constexpr absl::Duration kPatience = absl::Hours(1);
// The size of one value of the rendezvous.
constexpr std::size_t kPieceBytes = std::size_t{32} << 10;
constexpr std::size_t kMostPieces = backend::kMostPlanBytes / kPieceBytes + 1;
constexpr char kKey[] = "kernel-plan";

// The file with the plans for one kind of device.
class PlanFile {
 public:
  PlanFile(const KernelPlanFiles& kept, const PlanTarget& target)
      : files_(*kept.files), target_(target) {
    std::error_code error;
    directory_ = std::filesystem::weakly_canonical(kept.directory, error).string();
    path_ = absl::StrCat(directory_, "/", NameOf(target));
  }

  const std::string& path() const { return path_; }

  // Returns no plans, after logging a warning, if the file is no plan; Write then replaces it.
  PlanCache::Plans Read() const {
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) return {};
    absl::StatusOr<PlanCache::Plans> plans =
        backend::ParsePlanText(ReadPlanText(path_), path_, target_);
    if (plans.ok()) return *std::move(plans);
    Log(LogLevel::kWarning, "kernel plans of earlier jobs not used",
        {{"error", std::string(plans.status().message())}});
    return {};
  }

  // Adds what `job` chose to what was there; a choice that was made first is kept. The file is
  // replaced as a whole or not at all, because other workers may do the same at this time.
  void Write(PlanCache::Plans before, const PlanCache::Plans& job) const {
    const std::size_t known = before.size();
    before.insert(job.begin(), job.end());
    if (before.size() == known) return;
    std::string text = backend::PlanText(target_, before);
    if (text.size() > backend::kMostPlanBytes) text = backend::PlanText(target_, job);
    const absl::Status status = Replace(text);
    if (status.ok()) return;
    Log(LogLevel::kWarning, "kernel plan not kept for later jobs",
        {{"path", path_}, {"error", std::string(status.message())}});
  }

 private:
  // "sm-9.0-x-132-cublasLt-13.0.2.json"
  static std::string NameOf(const PlanTarget& target) {
    std::string name;
    for (const char c : ToString(target)) {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.';
      if (plain) {
        name += c;
      } else if (!name.ends_with('-')) {
        name += '-';
      }
    }
    return name + ".json";
  }

  absl::Status Replace(std::string_view text) const {
    RETURN_IF_ERROR(worker_checkpoint::EnsureDirectory(files_, directory_));
    const std::string partial = absl::StrCat(path_, ".partial-", getpid());
    absl::Status status = worker_checkpoint::WriteFile(files_, partial, text);
    if (status.ok()) status = files_.Rename(partial, path_);
    if (!status.ok()) files_.Remove(partial).IgnoreError();
    return status;
  }

  worker_checkpoint::FileSystem& files_;
  const PlanTarget& target_;
  std::string directory_, path_;
};

// Rank 0's part: it decides where each choice of the job comes from.
class Chooser {
 public:
  explicit Chooser(const KernelPlanOptions& options)
      : options_(options), cache_(options.kernels->plans()) {
    if (!options.kept.directory.empty()) file_.emplace(options.kept, cache_.target());
  }

  absl::StatusOr<AgreedKernelPlan> Run() {
    TakeCheckpoint();
    if (file_.has_value()) {
      kept_ = file_->Read();
      cache_.Offer(kept_);
    }
    const absl::Status chosen =
        options_.show_ops([this](const backend::Op& op) { return options_.kernels->Choose(op); });
    if (!chosen.ok()) return Explained(chosen);
    const PlanCache::Plans plans = cache_.plans();
    agreed_.text = backend::PlanText(cache_.target(), plans);
    agreed_.summary = Summary(plans);
    if (file_.has_value()) file_->Write(std::move(kept_), plans);
    return std::move(agreed_);
  }

 private:
  void TakeCheckpoint() {
    if (!options_.checkpoint.has_value()) return;
    const KeptPlan& kept = *options_.checkpoint;
    const absl::Status merged = backend::MergePlanText(kept.text, kept.where, cache_);
    if (!merged.ok()) {
      agreed_.notes.push_back(absl::StrCat(
          "a new kernel plan was made, so losses may differ from an undisturbed run's in their "
          "last bits: ",
          std::string(merged.message())));
    }
    restored_ = cache_.plans();
  }

  // Adds to the error where the refused choice may come from.
  absl::Status Explained(const absl::Status& status) const {
    if (!absl::IsFailedPrecondition(status) || kept_.empty()) return status;
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(status.message()), "; choices of earlier jobs are in ",
                     file_->path(), ": remove it to have new ones made"));
  }

  // Returns "41 shapes for sm 9.0 x 132, cublasLt 13.0.2, cudnn 9.13.0, attention by cuDNN: 30 of
  // the checkpoint, 11 chosen now".
  std::string Summary(const PlanCache::Plans& plans) const {
    std::size_t restored = 0, kept = 0;
    for (const auto& [key, plan] : plans) {
      if (restored_.contains(key)) {
        ++restored;
      } else if (kept_.contains(key)) {
        ++kept;
      }
    }
    std::vector<std::string> origins;
    const auto add = [&origins](std::size_t number, const char* origin) {
      if (number > 0) origins.push_back(absl::StrCat(number, origin));
    };
    add(restored, " of the checkpoint");
    add(kept, " of earlier jobs");
    add(plans.size() - restored - kept, " chosen now");
    return absl::StrCat(plans.size(), " shapes for ", ToString(cache_.target()),
                        AttentionText(plans), origins.empty() ? "" : ": ",
                        absl::StrJoin(origins, ", "));
  }

  // ", attention by cuDNN", or by what else; "" where no plan says it.
  static std::string AttentionText(const PlanCache::Plans& plans) {
    const auto is_any = [&plans](std::string_view implementation) {
      return std::ranges::any_of(plans, [implementation](const auto& entry) {
        return entry.second.implementation == implementation;
      });
    };
    const bool cudnn = is_any(backend::kByCudnn), own = is_any(backend::kByOurKernels);
    if (cudnn && own) return ", attention by cuDNN and, where it has no kernel, our own";
    return cudnn ? ", attention by cuDNN" : own ? ", attention by our own kernels" : "";
  }

  const KernelPlanOptions& options_;
  PlanCache& cache_;
  std::optional<PlanFile> file_;
  PlanCache::Plans restored_, kept_;  // from the checkpoint; from earlier jobs
  AgreedKernelPlan agreed_;
};

absl::Status Follow(const RankMeeting& meeting, PlanCache& cache) {
  ASSIGN_OR_RETURN(const std::string text, ReceivePlanText(*meeting.rendezvous, kKey, Rank(0)));
  const absl::Status merged = backend::MergePlanText(text, "the kernel plan of rank 0", cache);
  if (merged.ok()) return merged;
  return absl::FailedPreconditionError(
      absl::StrCat("all ranks of a job compute with rank 0's kernel plan, so on one kind of GPU "
                   "with libraries of one version; this one has ",
                   ToString(cache.target()), ": ", std::string(merged.message())));
}

}  // namespace

// Sends the pieces first, then their number under the key itself.
absl::Status SendPlanText(transport::Rendezvous& rendezvous, const std::string& key,
                          std::string_view text) {
  int pieces = 0;
  for (; !text.empty(); ++pieces) {
    const std::string_view piece = text.substr(0, kPieceBytes);
    RETURN_IF_ERROR(rendezvous.Set(absl::StrCat(key, "/", pieces), std::string(piece)));
    text.remove_prefix(piece.size());
  }
  return rendezvous.Set(key, absl::StrCat(pieces));
}

absl::StatusOr<std::string> ReceivePlanText(transport::Rendezvous& rendezvous,
                                            const std::string& key, Rank sender) {
  ASSIGN_OR_RETURN(const std::string number, rendezvous.Wait(key, kPatience));
  std::size_t pieces = 0;
  if (!absl::SimpleAtoi(number, &pieces) || pieces > kMostPieces)
    return transport::UnreadableStatus(sender, "the pieces of its kernel plan", number);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < pieces; ++i) keys.push_back(absl::StrCat(key, "/", i));
  ASSIGN_OR_RETURN(const std::vector<std::string> text, rendezvous.WaitAll(keys, kPatience));
  return absl::StrJoin(text, "");
}

std::string ReadPlanText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(backend::kMostPlanBytes + 1, '\0');
  file.read(text.data(), std::ssize(text));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

absl::StatusOr<AgreedKernelPlan> AgreeOnKernelPlan(const RankMeeting& meeting,
                                                   const KernelPlanOptions& options) {
  PlanCache& cache = options.kernels->plans();
  AgreedKernelPlan agreed;
  if (meeting.rank == Rank(0)) {
    ASSIGN_OR_RETURN(agreed, Chooser(options).Run());
    RETURN_IF_ERROR(SendPlanText(*meeting.rendezvous, kKey, agreed.text));
    Log(LogLevel::kInfo, "kernel plan", {{"plan", agreed.summary}});
  } else {
    RETURN_IF_ERROR(Follow(meeting, cache));
  }
  cache.EndTimings();
  // What chose has handles of its own, beside those of the backend that computes.
  options.kernels->EndChoices();
  if (!options.may_add) cache.Freeze();
  return agreed;
}

void FreezeKernelPlan(backend::KernelPlans& kernels, std::vector<std::string>& notes) {
  kernels.plans().Freeze();
  for (std::string& warning : kernels.plans().TakeWarnings()) {
    Log(LogLevel::kWarning, "kernels", {{"warning", warning}});
    notes.push_back(std::move(warning));
  }
}

}  // namespace takt::session
