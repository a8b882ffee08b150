// SPDX-License-Identifier: Apache-2.0
#include "cli/data/tokenize_run.h"

#include <pthread.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/data/tokenize_state.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/data/token_origin.h"

namespace takt::cli {
namespace {

// A run that is killed repeats what it did since its last record.
constexpr std::int64_t kRecordIntervalNanos = 5'000'000'000;

// Names everything that decides about the bytes of the output.
std::string JobOf(const TokenizeSettings& settings, const tokenizer::TokenizerFolder& folder) {
  const DocumentOptions& documents = settings.documents;
  std::string text = absl::StrCat(
      "2\n", folder.hash, "\n", static_cast<int>(documents.kind), " ",
      documents.begin_of_document.value_or(-1), " ", documents.end_of_document.value_or(-1), " ",
      documents.special_tokens, " ", static_cast<int>(settings.out.type), " ",
      settings.out.has_index, "\n", documents.text_field, "\n");
  for (const InputFile& input : settings.inputs) {
    absl::StrAppend(&text, input.path, "\n", input.bytes, " ", input.modified_nanos, "\n");
  }
  return checkpoint::HashOf(std::as_bytes(std::span(text)));
}

// Encodes the units of an input on threads. The caller's thread takes the results in the order of
// the units. The destructor stops and joins the threads.
class EncodingThreads final {
 public:
  EncodingThreads(const tokenizer::Tokenizer& tokenizer, const DocumentOptions& options,
                  TextInput input, int num_threads)
      : tokenizer_(tokenizer),
        options_(options),
        max_ahead_(2 * num_threads + 2),
        input_(std::move(input)) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~EncodingThreads() {
    {
      const absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }
  EncodingThreads(const EncodingThreads&) = delete;
  EncodingThreads& operator=(const EncodingThreads&) = delete;

  // Waits for the next unit; nullopt: there are no more. Errors: those of TextInput::Next and
  // DocumentEncoder::Encode.
  absl::StatusOr<std::optional<EncodedUnit>> Take() {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &EncodingThreads::CanTake));
    const auto it = results_.find(num_taken_);
    if (it == results_.end()) return std::optional<EncodedUnit>();
    absl::StatusOr<EncodedUnit> unit = std::move(it->second);
    results_.erase(it);
    ++num_taken_;
    RETURN_IF_ERROR(unit.status());
    return std::optional<EncodedUnit>(*std::move(unit));
  }

 private:
  bool CanTake() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return results_.contains(num_taken_) || (at_end_ && num_taken_ == num_cut_);
  }
  bool CanCut() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || at_end_ || num_cut_ < num_taken_ + max_ahead_;
  }

  void Work() {
    pthread_setname_np(pthread_self(), "takt-tokenize");
    DocumentEncoder encoder(tokenizer_, options_);
    while (true) {
      std::int64_t index = 0;
      std::optional<TextUnit> unit = Cut(index);
      if (!unit.has_value()) return;
      absl::StatusOr<EncodedUnit> encoded = encoder.Encode(*unit);
      const absl::MutexLock lock(&mutex_);
      results_.emplace(index, std::move(encoded));
    }
  }

  // Returns the next unit and its index, or nullopt at the end.
  std::optional<TextUnit> Cut(std::int64_t& index) {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &EncodingThreads::CanCut));
    if (stopping_ || at_end_) return std::nullopt;
    absl::StatusOr<std::optional<TextUnit>> unit = input_.Next();
    if (!unit.ok()) results_.emplace(num_cut_++, unit.status());
    if (!unit.ok() || !unit->has_value()) {
      at_end_ = true;
      return std::nullopt;
    }
    index = num_cut_++;
    return *std::move(unit);
  }

  const tokenizer::Tokenizer& tokenizer_;
  const DocumentOptions options_;
  const std::int64_t max_ahead_;  // units that are cut and not taken

  absl::Mutex mutex_;
  TextInput input_ ABSL_GUARDED_BY(mutex_);
  std::map<std::int64_t, absl::StatusOr<EncodedUnit>> results_ ABSL_GUARDED_BY(mutex_);
  std::int64_t num_cut_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t num_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  bool at_end_ ABSL_GUARDED_BY(mutex_) = false;  // of the input
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

// One run, on the caller's thread.
class Run {
 public:
  Run(const TokenizeSettings& settings, const tokenizer::TokenizerFolder& folder,
      const Clock& clock)
      : settings_(settings),
        folder_(folder),
        clock_(clock),
        state_path_(TokenizeStatePath(settings.out.path)),
        state_{.job = JobOf(settings, folder)} {}

  absl::StatusOr<TokenizeResult> Do(const TokenizeProgress& progress) {
    ASSIGN_OR_RETURN(data::TokenWriter writer, OpenWriter());
    result_ = {.counts = state_.counts, .resumed_bytes = state_.counts.input_bytes};
    last_record_ = clock_.SteadyNanos();
    absl::Status status = WriteUnits(writer, progress);
    if (status.ok() && result_.counts.tokens == 0) {
      status = InvalidField({.field = "IN",
                             .value = settings_.inputs.front().path,
                             .rule = "holds no text: there are no tokens",
                             .fix = "name files with text"});
    }
    if (status.ok()) status = writer.Publish(data::FormatTokenOrigin(Origin()));
    if (status.ok()) {
      unlink(state_path_.c_str());
      return result_;
    }
    // What is done stays done. A full disk may have no room even for the record; the last one
    // still holds then.
    if (writer.Sync().ok()) (void)WriteTokenizeState(state_path_, state_);
    return status;
  }

 private:
  // Opens the output where the earlier run stopped, or at the beginning.
  absl::StatusOr<data::TokenWriter> OpenWriter() {
    const std::optional<TokenizeState> earlier = ReadTokenizeState(state_path_);
    if (earlier.has_value() && earlier->job == state_.job) {
      absl::StatusOr<data::TokenWriter> writer =
          data::TokenWriter::Open(settings_.out, earlier->counts.tokens, earlier->counts.documents);
      // Before this run had the files for itself, another one may have gone on with them.
      if (writer.ok() && ReadTokenizeState(state_path_) != earlier) {
        return UnusableField({.field = settings_.out.field,
                              .value = settings_.out.path,
                              .rule = "was being written by another process until now",
                              .fix = "give the same command again"});
      }
      if (writer.ok()) state_ = *earlier;
      if (!absl::IsDataLoss(writer.status())) return writer;
    }
    absl::StatusOr<data::TokenWriter> writer = data::TokenWriter::Open(settings_.out, 0, 0);
    // What another job recorded is no longer in the output.
    if (writer.ok()) unlink(state_path_.c_str());
    return writer;
  }

  absl::Status WriteUnits(data::TokenWriter& writer, const TokenizeProgress& progress) {
    EncodingThreads threads(*folder_.tokenizer, settings_.documents,
                            TextInput(settings_.inputs, settings_.documents.kind, state_.next),
                            settings_.threads);
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<EncodedUnit> unit, threads.Take());
      if (!unit.has_value()) return absl::OkStatus();
      RETURN_IF_ERROR(writer.Append(unit->ids, unit->lengths));
      state_.next = unit->next;
      state_.counts += unit->counts;
      result_.counts = state_.counts;
      progress(result_);
      if (clock_.SteadyNanos() - last_record_ < kRecordIntervalNanos) continue;
      RETURN_IF_ERROR(writer.Sync());
      RETURN_IF_ERROR(Record());
      last_record_ = clock_.SteadyNanos();
    }
  }

  absl::Status Record() const {
    const absl::Status status = WriteTokenizeState(state_path_, state_);
    if (status.ok()) return status;
    return UnusableField({.field = settings_.out.field,
                          .value = settings_.out.path,
                          .rule = std::string(status.message()),
                          .fix = "free space and give the same command again: it goes on where it "
                                 "stopped"});
  }

  data::TokenOrigin Origin() const {
    data::TokenOrigin origin{.tokenizer = folder_.file,
                             .tokenizer_hash = folder_.hash,
                             .vocab = folder_.tokenizer->vocab_size(),
                             .documents = state_.counts.documents,
                             .tokens = state_.counts.tokens,
                             .bytes = state_.counts.bytes,
                             .replaced = state_.counts.replaced};
    origin.begin_of_document = settings_.documents.begin_of_document;
    origin.end_of_document = settings_.documents.end_of_document;
    return origin;
  }

  const TokenizeSettings& settings_;
  const tokenizer::TokenizerFolder& folder_;
  const Clock& clock_;
  const std::string state_path_;
  TokenizeState state_;  // what is in the output
  TokenizeResult result_;
  std::int64_t last_record_ = 0;  // on the clock
};

}  // namespace

absl::StatusOr<TokenizeResult> RunTokenize(const TokenizeSettings& settings,
                                           const tokenizer::TokenizerFolder& folder,
                                           const Clock& clock, const TokenizeProgress& progress) {
  return Run(settings, folder, clock).Do(progress);
}

}  // namespace takt::cli
