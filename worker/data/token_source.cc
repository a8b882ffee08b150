// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/data_root.h"

namespace takt::data {
namespace {

TokenSourceOptions Options(const config::JobSpec& job, std::string data_root, int dp_size) {
  return {.data_root = std::move(data_root),
          .context = job.model.context,
          .vocab = job.model.vocab,
          .shape = {.global = job.global_batch, .microbatch = job.microbatch, .dp_size = dp_size}};
}

}  // namespace

TokenSourceOptions TrainingTokens(const config::JobSpec& job, std::string data_root, int dp_size) {
  TAKT_CHECK(job.train.size() == 1);
  TokenSourceOptions options = Options(job, std::move(data_root), dp_size);
  options.field = "data.train";
  options.path = job.train.front().path;
  options.format = job.train.front().format;
  options.shuffle = job.shuffle;
  options.seed = job.seed;
  return options;
}

TokenSourceOptions ValidationTokens(const config::JobSpec& job, std::string data_root,
                                    int dp_size) {
  TAKT_CHECK(job.validation.has_value());
  TokenSourceOptions options = Options(job, std::move(data_root), dp_size);
  options.field = "data.validation";
  options.path = job.validation->path;
  options.format = job.validation->format;
  options.min_steps = job.validation->batches;
  return options;
}

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::Open(const TokenSourceOptions& options) {
  const std::string field = absl::StrCat(options.field, ".path");
  ASSIGN_OR_RETURN(const std::string path,
                   ResolveUnderRoot(field, options.data_root, options.path));
  absl::StatusOr<MappedFile> mapped = MappedFile::Open(path);
  if (!mapped.ok()) {
    return InvalidField(
        {.field = field,
         .value = options.path,
         .rule = absl::StrCat("must be a file that can be read: ", mapped.status().message()),
         .fix = "give a regular file with read permission for the worker's user"});
  }
  ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(mapped->bytes(), {.format = options.format,
                                                                     .context = options.context,
                                                                     .field = options.field,
                                                                     .path = options.path}));
  RETURN_IF_ERROR(file.CheckHolds(options.shape.global));
  if (options.min_steps > file.num_windows() / options.shape.global) {
    return InvalidField(
        {.field = absl::StrCat(options.field, ".batches"),
         .value = absl::StrCat(options.min_steps),
         .rule = absl::StrCat("the file holds ", file.num_windows() / options.shape.global,
                              " global batches of ", options.shape.global, " windows"),
         .fix = "evaluate on fewer batches or a longer file"});
  }
  RETURN_IF_ERROR(file.CheckVocab(options.vocab));
  auto source =
      std::unique_ptr<TokenSource>(new TokenSource(options, *std::move(mapped), std::move(file)));
  if (options.format == config::DataFormat::kSafetensors) source->CountScoredByWindow();
  return source;
}

TokenSource::TokenSource(const TokenSourceOptions& options, MappedFile mapped, TokenFile file)
    : shape_(options.shape),
      context_(options.context),
      mapped_(std::move(mapped)),
      file_(std::move(file)),
      order_(file_.num_windows(), options.shuffle, options.seed) {}

void TokenSource::CountScoredByWindow() {
  std::vector<std::int32_t> tokens(context_), targets(context_);
  scored_by_window_.resize(file_.num_windows());
  for (std::int64_t window = 0; window < file_.num_windows(); ++window) {
    file_.ReadWindow(window, tokens, targets);
    const auto ignored = std::count(targets.begin(), targets.end(), kIgnoredTarget);
    scored_by_window_[window] = context_ - static_cast<std::int32_t>(ignored);
  }
}

void TokenSource::Read(StepId step, DpRank dp_rank, MicrobatchId microbatch,
                       std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  for (int row = 0; row < shape_.microbatch; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * context_;
    file_.ReadWindow(order_.WindowAt(RowPosition(shape_, step, dp_rank, microbatch, row)),
                     tokens.subspan(begin, context_), targets.subspan(begin, context_));
  }
}

std::int64_t TokenSource::CountScored(StepId step) const {
  if (scored_by_window_.empty()) return std::int64_t{shape_.global} * context_;
  const std::int64_t first = RowPosition(shape_, step, DpRank(0), MicrobatchId(0), 0);
  std::int64_t scored = 0;
  for (int row = 0; row < shape_.global; ++row)
    scored += scored_by_window_[order_.WindowAt(first + row)];
  return scored;
}

}  // namespace takt::data
