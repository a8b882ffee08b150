// SPDX-License-Identifier: Apache-2.0
#include "worker/session/resume.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/open_real.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/config/resumable.h"

namespace takt::session {
namespace {

using checkpoint::ListedStep;

// Reading and hashing a large checkpoint takes a while. A rank that dies meanwhile is noticed in
// another way.
constexpr absl::Duration kPatience = absl::Hours(1);

// Rank 0 says one in each round. Only the last one of a meeting is not kTry.
enum class Verdict : std::uint8_t { kTry = 't', kGoOn = 'g', kBegin = 'b', kRefuse = 'r' };

struct Word {
  Verdict verdict = Verdict::kBegin;
  StepId step;           // of kTry and kGoOn
  absl::Status refusal;  // of kRefuse

  // "t40", "r9:job kjv ..." with the code of the error.
  std::string ToString() const {
    const char letter = static_cast<char>(verdict);
    if (verdict != Verdict::kRefuse) return absl::StrCat(std::string(1, letter), step.value());
    return absl::StrCat(std::string(1, letter), refusal.raw_code(), ":",
                        std::string(refusal.message()));
  }
  static Word Parse(const std::string& text) {
    Word word{.verdict = static_cast<Verdict>(text.at(0))};
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text.substr(1), absl::MaxSplits(':', 1));
    std::int64_t number = 0;
    TAKT_CHECK(absl::SimpleAtoi(parts.first, &number));
    word.step = StepId(number);
    if (word.verdict == Verdict::kRefuse)
      word.refusal = absl::Status(static_cast<absl::StatusCode>(number), parts.second);
    return word;
  }
};

std::string RandomText() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Creates a file, but does not follow a symbolic link at that path.
absl::Status WriteNew(const std::string& path, const std::string& text) {
  const int fd = OpenReal(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  const bool written = write(fd, text.data(), text.size()) == std::ssize(text);
  const int error = errno;
  close(fd);
  if (written) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
}

// Waits for an answer of every other rank to `key`. Returns the first complaint, or "" if there is
// none.
absl::StatusOr<std::string> FirstComplaint(const RankMeeting& meeting, const std::string& key) {
  std::string complaint;
  for (int rank = 1; rank < meeting.num_ranks; ++rank) {
    ASSIGN_OR_RETURN(const std::string answer,
                     meeting.rendezvous->Wait(absl::StrCat(key, "/", rank), kPatience));
    // "." stands for no complaint, because values must not be empty.
    if (complaint.empty() && answer != ".") complaint = absl::StrCat("rank ", rank, ": ", answer);
  }
  return complaint;
}

absl::Status Answer(const RankMeeting& meeting, const std::string& key,
                    const std::string& complaint) {
  return meeting.rendezvous->Set(absl::StrCat(key, "/", meeting.rank.value()),
                                 complaint.empty() ? "." : complaint);
}

std::string ProposalKey(int round) { return absl::StrCat("resume/", round); }

absl::Status TryLoad(const std::string& directory, StepId step, const LoadStep& load) {
  ASSIGN_OR_RETURN(const checkpoint::StepFiles files,
                   checkpoint::StepFiles::Open(
                       absl::StrCat(directory, "/", checkpoint::StepDirectoryName(step))));
  return load(files);
}

// Rank 0's part.
class Proposer {
 public:
  Proposer(const RankMeeting& meeting, const ResumeOptions& options, const LoadStep& load)
      : meeting_(meeting), options_(options), load_(load) {}

  absl::StatusOr<control::Resumed> Run() {
    const absl::StatusOr<Word> word = Choose();
    if (!word.ok() && !failure_.ok()) return failure_;  // the other ranks notice it by themselves
    const Word last =
        word.ok() ? *word : Word{.verdict = Verdict::kRefuse, .refusal = word.status()};
    RETURN_IF_ERROR(Say(last));
    if (last.verdict == Verdict::kRefuse) return last.refusal;
    return control::Resumed{.step = last.step, .notes = Notes()};
  }

 private:
  absl::StatusOr<Word> Choose() {
    auto listed = checkpoint::ListSteps(options_.directory);
    if (!listed.ok() && !absl::IsNotFound(listed.status())) return listed.status();
    std::vector<ListedStep> steps = listed.ok() ? *std::move(listed) : std::vector<ListedStep>();
    std::int64_t wanted = 0;
    const bool by_number = absl::SimpleAtoi(options_.wanted, &wanted);
    if (by_number)
      std::erase_if(steps, [&](const ListedStep& s) { return s.step != StepId(wanted); });

    absl::Status incompatible;
    checkpoint::ChosenStep chosen = checkpoint::ChooseStep(
        steps, by_number ? StepId(0) : options_.at_most,
        [&](const ListedStep& step) -> absl::Status {
          if (!failure_.ok()) return failure_;
          // An older checkpoint is of the same job, so looking further would be of no use.
          incompatible = Annotate(config::CheckResumes(*options_.job, step.manifest->job_spec),
                                  absl::StrCat("checkpoint ", step.name));
          return incompatible.ok() ? Try(step) : absl::OkStatus();
        });
    RETURN_IF_ERROR(failure_);
    RETURN_IF_ERROR(incompatible);
    passed_over_ = std::move(chosen.passed_over);
    if (chosen.step.has_value()) return Word{.verdict = Verdict::kGoOn, .step = *chosen.step};
    if (passed_over_.empty() && !by_number) return Word{.verdict = Verdict::kBegin};
    if (passed_over_.empty()) {
      return InvalidField({.field = "checkpoint.resume",
                           .value = options_.wanted,
                           .rule = absl::StrCat("there is no such step in ", options_.directory),
                           .fix = "look with `takt checkpoint list`, or use auto"});
    }
    return absl::DataLossError(absl::StrCat("no checkpoint in ", options_.directory,
                                            " can be used: ", absl::StrJoin(Notes(), "; ")));
  }

  absl::Status Try(const ListedStep& step) {
    const absl::StatusOr<std::string> complaint = Ask(step);
    if (!complaint.ok()) return failure_ = complaint.status();
    return complaint->empty() ? absl::OkStatus() : absl::DataLossError(*complaint);
  }

  // Returns why some rank cannot load the step, or "" if all ranks have loaded it.
  absl::StatusOr<std::string> Ask(const ListedStep& step) {
    const std::string key = ProposalKey(round_);
    RETURN_IF_ERROR(Say({.verdict = Verdict::kTry, .step = step.step}));
    const absl::Status own = TryLoad(options_.directory, step.step, load_);
    ASSIGN_OR_RETURN(const std::string others, FirstComplaint(meeting_, key));
    return own.ok() ? others : std::string(own.message());
  }

  absl::Status Say(const Word& word) {
    return meeting_.rendezvous->Set(ProposalKey(round_++), word.ToString());
  }

  std::vector<std::string> Notes() const {
    std::vector<std::string> notes;
    for (const checkpoint::PassedOver& step : passed_over_)
      notes.push_back(
          absl::StrCat("checkpoint of step ", step.step.value(), " passed over: ", step.reason));
    return notes;
  }

  const RankMeeting& meeting_;
  const ResumeOptions& options_;
  const LoadStep& load_;
  int round_ = 0;
  absl::Status failure_;  // of the rendezvous itself
  std::vector<checkpoint::PassedOver> passed_over_;
};

absl::StatusOr<control::Resumed> Follow(const RankMeeting& meeting, const ResumeOptions& options,
                                        const LoadStep& load) {
  for (int round = 0;; ++round) {
    const std::string key = ProposalKey(round);
    ASSIGN_OR_RETURN(const std::string text, meeting.rendezvous->Wait(key, kPatience));
    const Word word = Word::Parse(text);
    if (word.verdict == Verdict::kRefuse) return word.refusal;
    if (word.verdict != Verdict::kTry) return control::Resumed{.step = word.step};
    const absl::Status loaded = TryLoad(options.directory, word.step, load);
    RETURN_IF_ERROR(Answer(meeting, key, std::string(loaded.message())));
  }
}

}  // namespace

absl::Status MeetAll(const RankMeeting& meeting, const std::string& name) {
  if (meeting.num_ranks == 1) return absl::OkStatus();
  if (meeting.rank != Rank(0)) {
    RETURN_IF_ERROR(Answer(meeting, name, ""));
    return meeting.rendezvous->Wait(name, kPatience).status();
  }
  RETURN_IF_ERROR(FirstComplaint(meeting, name).status());
  return meeting.rendezvous->Set(name, ".");
}

absl::Status CheckShared(const RankMeeting& meeting, const std::string& directory,
                         const std::string& name) {
  if (meeting.num_ranks == 1) return absl::OkStatus();
  const std::string key = "shared";
  const std::string path = absl::StrCat(directory, "/", name);
  if (meeting.rank != Rank(0)) {
    ASSIGN_OR_RETURN(const std::string written, meeting.rendezvous->Wait(key, kPatience));
    const bool seen = ReadAll(path) == written;
    return Answer(meeting, key, seen ? "" : absl::StrCat("does not see ", path));
  }
  const std::string text = RandomText();
  RETURN_IF_ERROR(WriteNew(path, text));
  RETURN_IF_ERROR(meeting.rendezvous->Set(key, text));
  const absl::StatusOr<std::string> complaint = FirstComplaint(meeting, key);
  std::remove(path.c_str());
  RETURN_IF_ERROR(complaint.status());
  if (complaint->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("all workers must share one checkpoint root; ", *complaint,
                   ", which rank 0 wrote; mount the same storage under every --checkpoint-root"));
}

absl::StatusOr<control::Resumed> AgreeOnResume(const RankMeeting& meeting,
                                               const ResumeOptions& options, const LoadStep& load) {
  if (options.wanted == "none") return control::Resumed();
  if (meeting.rank == Rank(0)) return Proposer(meeting, options, load).Run();
  return Follow(meeting, options, load);
}

}  // namespace takt::session
