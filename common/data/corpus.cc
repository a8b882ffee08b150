// SPDX-License-Identifier: Apache-2.0
#include "common/data/corpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/data/documents.h"

namespace takt::data {
namespace {

// Returns whether the last document of a row is padding. begin: its first token in the file.
bool IsPadding(const TokenFile& file, std::int64_t begin, std::int64_t num_tokens) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(num_tokens));
  const auto are_all = [&](const TokenValues& source, std::int32_t value) {
    source.Read(begin, values);
    return std::ranges::count(values, value) == num_tokens;
  };
  return are_all(file.targets, kIgnoredTarget) && are_all(file.tokens, kPaddingToken);
}

}  // namespace

absl::StatusOr<Corpus> Corpus::Open(CorpusPath path) {
  ASSIGN_OR_RETURN(const std::vector<CorpusFile> files, FindCorpusFiles(path));
  Corpus corpus(std::move(path));
  for (const CorpusFile& file : files) RETURN_IF_ERROR(corpus.Add(file));
  return corpus;
}

absl::StatusOr<std::span<const std::byte>> Corpus::Map(const std::string& path) {
  absl::StatusOr<MappedFile> mapped = MappedFile::OpenReal(path);
  if (!mapped.ok()) {
    return UnusableField(
        {.field = path_.field,
         .value = path_.path,
         .rule = absl::StrCat("must be a file that can be read: ", mapped.status().message()),
         .fix = "give a regular file with read permission for the worker's user"});
  }
  mapped_.push_back(*std::move(mapped));
  return mapped_.back().bytes();
}

absl::Status Corpus::Add(const CorpusFile& file) {
  TokenFileBytes bytes;
  ASSIGN_OR_RETURN(bytes.file, Map(file.file));
  if (!file.index.empty()) {
    ASSIGN_OR_RETURN(bytes.index, Map(file.index));
  }
  Shard shard{.path = file.file,
              .bytes = std::ssize(bytes.file) + std::ssize(bytes.index),
              .begin = num_tokens_};
  ASSIGN_OR_RETURN(
      shard.file,
      ParseTokenFile(bytes, {.format = path_.format, .field = path_.field, .path = file.file}));
  if (!shards_.empty()) {
    const TokenFile& first = shards_.front().file;
    if (shard.file.tokens.type() != first.tokens.type()) {
      return Bad(shard,
                 absl::StrCat("holds ", std::string(NameOf(shard.file.tokens.type())), " tokens; ",
                              shards_.front().path, " of the same corpus holds ",
                              std::string(NameOf(first.tokens.type()))),
                 "make them two corpora");
    }
    if (shard.file.row_length != first.row_length) {
      return Bad(
          shard,
          absl::StrCat("has rows of ", shard.file.row_length, " tokens; ", shards_.front().path,
                       " of the same corpus has rows of ", first.row_length),
          "make them equal");
    }
    if (SaysDocuments(shard.file) != SaysDocuments(first)) {
      return Bad(shard,
                 absl::StrCat(SaysDocuments(first) ? "does not say" : "says",
                              " where documents begin (`document` or `positions`), unlike ",
                              shards_.front().path, " of the same corpus"),
                 "make them alike");
    }
  }
  num_tokens_ += shard.file.tokens.size();
  shards_.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status Corpus::Bad(const Shard& shard, std::string rule, std::string fix) const {
  return InvalidField(
      {.field = path_.field, .value = shard.path, .rule = std::move(rule), .fix = std::move(fix)});
}

std::optional<std::int64_t> Corpus::num_documents() const {
  std::int64_t sum = 0;
  for (const Shard& shard : shards_) {
    if (!shard.file.num_documents.has_value()) return std::nullopt;
    sum += *shard.file.num_documents;
  }
  return sum;
}

std::optional<std::int64_t> Corpus::num_scored() const {
  if (row_length() == 0) return std::nullopt;
  std::int64_t scored = 0;
  for (const Shard& shard : shards_) {
    const TokenValues& targets = shard.file.targets;
    for (std::int64_t i = 0; i < targets.size(); ++i) scored += targets.At(i) != kIgnoredTarget;
  }
  return scored;
}

std::int64_t Corpus::LargestId() const {
  std::int64_t largest = -1;
  for (const Shard& shard : shards_) {
    largest = std::max({largest, shard.file.tokens.Largest(), shard.file.targets.Largest()});
  }
  return largest;
}

std::int64_t Corpus::NumWindows(int context) const {
  if (row_length() == 0) return (num_tokens_ - 1) / context;
  return row_length() == context ? num_tokens_ / context : 0;
}

absl::Status Corpus::CheckWindows(int context, std::int64_t min_windows) const {
  const auto refuse = [&](std::string rule, std::string fix) {
    return InvalidField({.field = path_.field,
                         .value = path_.path,
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  if (row_length() != 0 && row_length() != context) {
    return refuse(absl::StrCat("has rows of ", row_length(), " tokens; model.context is ", context),
                  "make them equal");
  }
  const std::int64_t num_windows = NumWindows(context);
  if (num_windows == 0) {
    return refuse(absl::StrCat("holds ", num_tokens_,
                               " tokens; one window needs model.context + 1 = ", context + 1),
                  "use a longer file or a shorter context");
  }
  if (num_windows >= min_windows) return absl::OkStatus();
  return refuse(absl::StrCat("holds ", Counted(num_windows, "window"), " of ", context,
                             " tokens; one step needs ", min_windows),
                "use a longer file, a shorter context or a smaller batch");
}

absl::Status Corpus::CheckVocab(int vocab) const {
  for (const Shard& shard : shards_) {
    const auto check = [&](const TokenValues& values, const char* what, bool allow_ignored) {
      const std::int64_t at = values.FindOutside(vocab, allow_ignored);
      if (at == values.size()) return absl::OkStatus();
      return Bad(shard,
                 absl::StrCat("has ", what, " ", values.Shown(at), " at position ", at,
                              "; ids must be 0 to ", vocab - 1, " (model.vocab - 1)",
                              allow_ignored ? ", or -100" : ""),
                 "raise model.vocab, or check the format");
    };
    RETURN_IF_ERROR(check(shard.file.tokens, "token", false));
    RETURN_IF_ERROR(check(shard.file.targets, "target", true));
  }
  return absl::OkStatus();
}

absl::Status Corpus::CheckDocuments() const {
  if (!says_documents()) return absl::OkStatus();
  for (const Shard& shard : shards_) RETURN_IF_ERROR(CheckDocuments(shard));
  return absl::OkStatus();
}

absl::Status Corpus::CheckDocuments(const Shard& shard) const {
  const TokenValues &documents = shard.file.documents, &positions = shard.file.positions;
  const std::int64_t length = row_length();
  const auto room = static_cast<std::size_t>(length);
  std::vector<std::int32_t> ids(room), places(room), starts(room), same(room);
  for (std::int64_t begin = 0; begin < shard.file.tokens.size(); begin += length) {
    const auto wrong = [&](std::int64_t at, const std::string& rule) {
      return Bad(shard, absl::StrCat("row ", begin / length, ", position ", at, ": ", rule),
                 "correct what writes the file");
    };
    if (documents.size() > 0) {
      documents.Read(begin, ids);
      const std::int64_t at = FirstWrongId(ids);
      if (at < length) {
        return wrong(at, absl::StrCat("`document` is ", ids[at],
                                      "; ids must be 0 or more and must not fall within a row"));
      }
      StartsFromIds(ids, starts);
    }
    if (positions.size() == 0) continue;
    positions.Read(begin, places);
    const std::int64_t at = FirstWrongPosition(places);
    if (at < length) {
      return wrong(at, absl::StrCat("`positions` is ", places[at],
                                    "; each must be 0 or follow the one before it, and a row must "
                                    "begin with 0"));
    }
    if (documents.size() == 0) continue;
    StartsFromPositions(places, same);
    const std::int64_t differs = std::ranges::mismatch(starts, same).in1 - starts.begin();
    if (differs < length)
      return wrong(differs, "`document` and `positions` begin different documents");
  }
  return absl::OkStatus();
}

DocumentCount Corpus::CountDocuments(std::int32_t end) const {
  const std::int64_t length = says_documents() ? row_length() : std::int64_t{1} << 16;
  std::vector<std::int32_t> values;
  DocumentCount count;
  std::int32_t last = end;
  for (const Shard& shard : shards_) {
    const TokenFile& file = shard.file;
    const bool by_ids = file.documents.size() > 0, by_positions = file.positions.size() > 0;
    const TokenValues& source =
        by_ids ? file.documents : (by_positions ? file.positions : file.tokens);
    for (std::int64_t begin = 0; begin < source.size(); begin += length) {
      values.resize(static_cast<std::size_t>(std::min(length, source.size() - begin)));
      source.Read(begin, values);
      if (!by_ids && !by_positions) {
        count.documents += std::ranges::count(values, end);
        last = values.back();
        continue;
      }
      if (by_ids) StartsFromIds(values, values);
      if (!by_ids) StartsFromPositions(values, values);
      // Starts rise from document to document, so a start that is its own place begins one.
      for (std::size_t t = 0; t < values.size(); ++t)
        count.documents += values[t] == static_cast<std::int32_t>(t) ? 1 : 0;
      const std::int64_t last_start = values.back();
      if (!IsPadding(file, begin + last_start, length - last_start)) continue;
      --count.documents;
      count.padding += length - last_start;
    }
  }
  if (!says_documents() && last != end) ++count.documents;
  return count;
}

const Corpus::Shard& Corpus::ShardOf(std::int64_t token) const {
  const auto after = std::upper_bound(
      shards_.begin(), shards_.end(), token,
      [](std::int64_t position, const Shard& shard) { return position < shard.begin; });
  return *(after - 1);
}

void Corpus::ReadStream(std::int64_t begin, std::span<std::int32_t> out) const {
  for (const Shard* shard = &ShardOf(begin); !out.empty(); ++shard) {
    const std::int64_t from = begin - shard->begin;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(std::ssize(out), shard->file.tokens.size() - from));
    shard->file.tokens.Read(from, out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

void Corpus::ReadWindow(std::int64_t window, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) const {
  const auto context = static_cast<int>(tokens.size());
  TAKT_CHECK(tokens.size() == targets.size());
  TAKT_CHECK(window >= 0 && window < NumWindows(context));
  const std::int64_t begin = window * context;
  if (row_length() == 0) {
    ReadStream(begin, tokens);
    ReadStream(begin + 1, targets);
    return;
  }
  const Shard& shard = ShardOf(begin);  // a shard holds whole rows
  shard.file.tokens.Read(begin - shard.begin, tokens);
  shard.file.targets.Read(begin - shard.begin, targets);
}

void Corpus::ReadSeparated(std::int64_t window, std::int32_t end, std::span<std::int32_t> tokens,
                           std::span<std::int32_t> targets, std::span<std::int32_t> starts) const {
  ReadWindow(window, tokens, targets);
  TAKT_CHECK(starts.size() == tokens.size());
  if (!says_documents()) {
    StartsFromEnds(tokens, end, starts);
    // The next document may begin with the next window.
    if (tokens.back() == end) targets.back() = kIgnoredTarget;
  } else {
    const std::int64_t begin = window * std::ssize(tokens);
    const Shard& shard = ShardOf(begin);
    if (shard.file.documents.size() > 0) {
      shard.file.documents.Read(begin - shard.begin, starts);
      StartsFromIds(starts, starts);
    } else {
      shard.file.positions.Read(begin - shard.begin, starts);
      StartsFromPositions(starts, starts);
    }
  }
  IgnoreLastOfDocuments(starts, targets);
}

}  // namespace takt::data
