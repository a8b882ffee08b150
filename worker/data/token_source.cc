// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_source.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/data/token_origin.h"

namespace takt::worker_data {
namespace {

TokenSourceOptions Options(const config::JobSpec& job, std::string data_root, int dp_size) {
  return {.data_root = std::move(data_root),
          .context = job.model.context,
          .vocab = job.model.vocab,
          .shape = {.global = job.global_batch, .microbatch = job.microbatch, .dp_size = dp_size},
          .documents = job.documents,
          .separate_documents = job.SeparatesDocuments(),
          .document_end = job.document_end};
}

// "data.train.path", or "data.train[1].path" if there are several corpora.
std::string PathField(const TokenSourceOptions& options, std::size_t corpus) {
  const std::string element = options.corpora.size() == 1 ? "" : absl::StrCat("[", corpus, "]");
  return absl::StrCat(options.field, element, ".path");
}

// Checks that the job and the file together say what becomes of documents.
absl::Status CheckDocuments(const TokenSourceOptions& options, const data::Corpus& corpus,
                            const std::string& field) {
  if (corpus.says_documents() && options.documents == config::Documents::kUnstated &&
      !options.separate_documents) {
    return InvalidField(
        {.field = "data.documents",
         .rule = absl::StrCat("is missing, but ", corpus.path(), " says where documents begin"),
         .fix = "use separate, or join if tokens are to see other documents"});
  }
  const bool unknown = !corpus.says_documents() && !options.document_end.has_value();
  if (!options.separate_documents || !unknown) return absl::OkStatus();
  return InvalidField({.field = field,
                       .value = corpus.path(),
                       .rule = "holds neither `document` nor `positions`, and data.document_end is "
                               "not given, so nothing says where documents begin",
                       .fix = "add one of them, or use documents: join"});
}

absl::StatusOr<std::vector<data::Corpus>> OpenCorpora(const TokenSourceOptions& options) {
  std::vector<data::Corpus> corpora;
  for (std::size_t i = 0; i < options.corpora.size(); ++i) {
    ASSIGN_OR_RETURN(data::Corpus corpus,
                     data::Corpus::Open({.field = PathField(options, i),
                                         .path = options.corpora[i].path,
                                         .data_root = options.data_root,
                                         .format = options.corpora[i].format}));
    RETURN_IF_ERROR(corpus.CheckWindows(options.context, 1));
    RETURN_IF_ERROR(CheckDocuments(options, corpus, PathField(options, i)));
    corpora.push_back(std::move(corpus));
  }
  return corpora;
}

data::Mixture MixtureOf(const TokenSourceOptions& options,
                        const std::vector<data::Corpus>& corpora) {
  std::vector<data::MixedCorpus> mixed;
  for (std::size_t i = 0; i < corpora.size(); ++i) {
    mixed.push_back({.num_windows = corpora[i].NumWindows(options.context),
                     .weight = options.corpora[i].weight});
  }
  return data::Mixture(mixed, options.shuffle, options.seed);
}

// Checks that one step does not read a window twice, and that `min_steps` together do not either.
absl::Status CheckSizes(const TokenSourceOptions& options, const std::vector<data::Corpus>& corpora,
                        const data::Mixture& mixture) {
  const std::int64_t global = options.shape.global;
  for (std::size_t i = 0; i < corpora.size(); ++i) {
    const data::Corpus& corpus = corpora[i];
    const std::int64_t num_windows = corpus.NumWindows(options.context);
    const auto most = [&](std::int64_t steps) {
      return mixture.MostRows(static_cast<int>(i), steps * global);
    };
    RETURN_IF_ERROR(corpus.CheckWindows(options.context, most(1)));
    if (most(options.min_steps) <= num_windows) continue;
    return InvalidField({.field = absl::StrCat(options.field, ".batches"),
                         .value = absl::StrCat(options.min_steps),
                         .rule = absl::StrCat(corpus.path(), " holds ", num_windows / global,
                                              " global batches of ", global, " windows"),
                         .fix = "evaluate on fewer batches or a longer file"});
  }
  return absl::OkStatus();
}

// Returns how many documents the corpus has, as its format says, or what `takt data tokenize` wrote
// beside its files; nullopt: neither says where they end.
std::optional<std::int64_t> KnownDocuments(const data::Corpus& corpus) {
  if (corpus.num_documents().has_value()) return corpus.num_documents();
  std::int64_t documents = 0;
  for (const data::Corpus::Shard& shard : corpus.shards()) {
    const auto origin = data::ReadTokenOrigin(shard.path);
    if (!origin.ok() || !origin->has_value() || !(*origin)->end_of_document.has_value())
      return std::nullopt;
    documents += (*origin)->documents;
  }
  return documents;
}

}  // namespace

TokenSourceOptions TrainingTokens(const config::JobSpec& job, std::string data_root, int dp_size) {
  if (job.evaluation.has_value()) return ValidationTokens(job, std::move(data_root), dp_size);
  TAKT_CHECK(!job.train.empty());
  TokenSourceOptions options = Options(job, std::move(data_root), dp_size);
  options.field = "data.train";
  options.corpora = job.train;
  options.shuffle = job.shuffle;
  options.seed = job.seed;
  return options;
}

TokenSourceOptions ValidationTokens(const config::JobSpec& job, std::string data_root,
                                    int dp_size) {
  TAKT_CHECK(job.validation.has_value());
  TokenSourceOptions options = Options(job, std::move(data_root), dp_size);
  options.field = "data.validation";
  options.corpora = {{.path = job.validation->path, .format = job.validation->format}};
  options.min_steps = job.validation->batches;
  return options;
}

absl::Status TokenSource::CheckFiles(const TokenSourceOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<data::Corpus> corpora, OpenCorpora(options));
  return CheckSizes(options, corpora, MixtureOf(options, corpora));
}

absl::StatusOr<std::vector<std::string>> TokenSource::Notes(const TokenSourceOptions& options) {
  std::vector<std::string> notes;
  if (options.documents != config::Documents::kUnstated || options.separate_documents) return notes;
  ASSIGN_OR_RETURN(const std::vector<data::Corpus> corpora, OpenCorpora(options));
  for (const data::Corpus& corpus : corpora) {
    const std::int64_t documents = KnownDocuments(corpus).value_or(0);
    if (documents <= 1) continue;
    notes.push_back(absl::StrCat(
        "data.documents is missing: the ", documents, " documents of ", corpus.path(),
        " are joined, so tokens see those before them; set join if they should, or separate"));
  }
  return notes;
}

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::Open(const TokenSourceOptions& options) {
  ASSIGN_OR_RETURN(std::vector<data::Corpus> corpora, OpenCorpora(options));
  data::Mixture mixture = MixtureOf(options, corpora);
  RETURN_IF_ERROR(CheckSizes(options, corpora, mixture));
  for (const data::Corpus& corpus : corpora) {
    RETURN_IF_ERROR(corpus.CheckVocab(options.vocab));
    if (options.separate_documents) RETURN_IF_ERROR(corpus.CheckDocuments());
  }
  return std::unique_ptr<TokenSource>(
      new TokenSource(options, std::move(corpora), std::move(mixture)));
}

TokenSource::TokenSource(const TokenSourceOptions& options, std::vector<data::Corpus> corpora,
                         data::Mixture mixture)
    : shape_(options.shape),
      context_(options.context),
      separates_documents_(options.separate_documents),
      document_end_(options.document_end.value_or(-1)),
      corpora_(std::move(corpora)),
      mixture_(std::move(mixture)) {
  for (const data::Corpus& corpus : corpora_) scored_.push_back(ScoredByWindow(corpus));
}

std::vector<std::int32_t> TokenSource::ScoredByWindow(const data::Corpus& corpus) const {
  std::vector<std::int32_t> scored;
  if (corpus.row_length() == 0 && !separates_documents_) return scored;
  std::vector<std::int32_t> tokens(context_), targets(context_), starts(context_);
  scored.resize(corpus.NumWindows(context_));
  for (std::int64_t window = 0; window < std::ssize(scored); ++window) {
    if (separates_documents_) {
      corpus.ReadSeparated(window, document_end_, tokens, targets, starts);
    } else {
      corpus.ReadWindow(window, tokens, targets);
    }
    const auto ignored = std::count(targets.begin(), targets.end(), data::kIgnoredTarget);
    scored[window] = context_ - static_cast<std::int32_t>(ignored);
  }
  return scored;
}

void TokenSource::Read(StepId step, DpRank dp_rank, MicrobatchId microbatch,
                       std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
                       std::span<std::int32_t> starts) const {
  TAKT_CHECK(starts.size() == (separates_documents_ ? tokens.size() : 0));
  for (int row = 0; row < shape_.microbatch; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * context_;
    const data::Draw draw = mixture_.At(data::RowPosition(shape_, step, dp_rank, microbatch, row));
    const data::Corpus& corpus = corpora_[draw.corpus];
    const std::span<std::int32_t> its_tokens = tokens.subspan(begin, context_);
    const std::span<std::int32_t> its_targets = targets.subspan(begin, context_);
    if (separates_documents_) {
      corpus.ReadSeparated(draw.window, document_end_, its_tokens, its_targets,
                           starts.subspan(begin, context_));
    } else {
      corpus.ReadWindow(draw.window, its_tokens, its_targets);
    }
  }
}

std::int64_t TokenSource::CountScored(StepId step) const {
  const bool all_scored = std::all_of(scored_.begin(), scored_.end(),
                                      [](const auto& windows) { return windows.empty(); });
  if (all_scored) return std::int64_t{shape_.global} * context_;
  const std::int64_t first = data::RowPosition(shape_, step, DpRank(0), MicrobatchId(0), 0);
  std::int64_t scored = 0;
  for (int row = 0; row < shape_.global; ++row) {
    const data::Draw draw = mixture_.At(first + row);
    const std::vector<std::int32_t>& windows = scored_[draw.corpus];
    scored += windows.empty() ? context_ : windows[draw.window];
  }
  return scored;
}

absl::StatusOr<std::optional<double>> TokenSource::BytesPerToken() const {
  if (corpora_.size() != 1) return std::nullopt;
  return data::BytesPerToken(corpora_.front());
}

}  // namespace takt::worker_data
