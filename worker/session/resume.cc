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
#include <span>
#include <string_view>
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
#include "worker/session/rooted_directory.h"
#include "worker/transport/handshake.h"

namespace takt::session {
namespace {

using checkpoint::ListedStep;

// Reading and hashing a large checkpoint takes a while. A rank that dies meanwhile is noticed in
// another way.
constexpr absl::Duration kPatience = absl::Hours(1);
// A rank that does not see what it must see looks again so often.
constexpr absl::Duration kLookAgain = absl::Milliseconds(500);

// Rank 0 says one in each round. Only the last one of a meeting is not kTry.
enum class Verdict : std::uint8_t { kTry = 't', kGoOn = 'g', kBegin = 'b', kRefuse = 'r' };

constexpr char kDirectoryField[] = "checkpoint.directory";
constexpr std::string_view kVerdicts = "tgbr";  // the letters of Verdict
constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

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
  // loaded: the step that this rank has loaded last. Rank 0 never goes on from another one.
  static absl::StatusOr<Word> Parse(const std::string& text, StepId loaded) {
    const absl::Status unreadable =
        transport::UnreadableStatus(Rank(0), "what to resume from", text);
    if (text.empty() || kVerdicts.find(text[0]) == std::string_view::npos) return unreadable;
    Word word{.verdict = static_cast<Verdict>(text[0])};
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text.substr(1), absl::MaxSplits(':', 1));
    std::int64_t number = 0;
    if (!absl::SimpleAtoi(parts.first, &number) || number < 0) return unreadable;
    if (word.verdict == Verdict::kRefuse) {
      if (number < 1 || number > kLastCode) return unreadable;
      word.refusal = absl::Status(static_cast<absl::StatusCode>(number), parts.second);
      return word;
    }
    word.step = StepId(number);
    if (word.verdict == Verdict::kGoOn && word.step != loaded) return unreadable;
    if (word.verdict == Verdict::kBegin && word.step != StepId(0)) return unreadable;
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
  if (fd < 0) return FileError(errno, absl::StrCat("cannot create ", path));
  const bool written = write(fd, text.data(), text.size()) == std::ssize(text);
  const int error = errno;
  close(fd);
  if (written) return absl::OkStatus();
  return FileError(error, absl::StrCat("cannot write ", path));
}

}  // namespace

absl::StatusOr<Complaint> FirstComplaint(const RankMeeting& meeting, const std::string& key) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < meeting.num_ranks; ++rank) keys.push_back(absl::StrCat(key, "/", rank));
  ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                   meeting.rendezvous->WaitAll(keys, kPatience));
  Complaint first;
  for (int rank = 1; rank < meeting.num_ranks; ++rank) {
    const std::string& answer = answers[static_cast<std::size_t>(rank - 1)];
    if (answer == ".") continue;  // stands for no complaint, because values must not be empty
    const bool trouble = answer.starts_with(kTrouble);
    ++first.count;
    if (!first.text.empty() && (first.trouble || !trouble)) continue;
    first.text =
        absl::StrCat("rank ", rank, ": ", trouble ? answer.substr(kTrouble.size()) : answer);
    first.trouble = trouble;
  }
  return first;
}

absl::Status Answer(const RankMeeting& meeting, const std::string& key,
                    const std::string& complaint) {
  return meeting.rendezvous->Set(absl::StrCat(key, "/", meeting.rank.value()),
                                 complaint.empty() ? "." : complaint);
}

namespace {

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
    if (!failure_.ok()) {
      // If the rendezvous itself failed, the other ranks notice it by themselves.
      if (!to_tell_.empty()) {
        RETURN_IF_ERROR(
            Say({.verdict = Verdict::kRefuse, .refusal = absl::UnavailableError(to_tell_)}));
      }
      return failure_;
    }
    const Word last =
        word.ok() ? *word : Word{.verdict = Verdict::kRefuse, .refusal = word.status()};
    RETURN_IF_ERROR(Say(last));
    if (last.verdict == Verdict::kRefuse) return last.refusal;
    return control::Resumed{.step = last.step, .notes = Notes()};
  }

 private:
  absl::StatusOr<Word> Choose() {
    auto listed = checkpoint::ListSteps(options_.directory);
    if (!listed.ok() && !absl::IsNotFound(listed.status())) return OwnTrouble(listed.status());
    std::vector<ListedStep> steps = listed.ok() ? *std::move(listed) : std::vector<ListedStep>();
    std::int64_t wanted = 0;
    const bool by_number = absl::SimpleAtoi(options_.wanted, &wanted);
    if (by_number)
      std::erase_if(steps, [&](const ListedStep& s) { return s.step != StepId(wanted); });
    const StepId at_most = by_number ? StepId(0) : options_.at_most;
    RETURN_IF_ERROR(CheckReadable(steps, at_most));

    absl::Status incompatible;
    checkpoint::ChosenStep chosen =
        checkpoint::ChooseStep(steps, at_most, [&](const ListedStep& step) -> absl::Status {
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
    return OwnTrouble(UnusableField(
        {.field = kDirectoryField,
         .value = options_.directory,
         .rule = absl::StrCat("has no checkpoint that can be used: ", absl::StrJoin(Notes(), "; ")),
         .fix = "repair one, name another directory, or begin anew with checkpoint.resume: none"}));
  }

  // A step that the disk does not show may be whole, so nothing older is taken in its place.
  absl::Status CheckReadable(std::span<const ListedStep> steps, StepId at_most) {
    for (const ListedStep& step : steps) {
      if (at_most != StepId() && step.step > at_most) continue;
      if (!step.disk_error.ok()) return OwnTrouble(step.disk_error);
      if (step.state == checkpoint::StepState::kComplete) break;
    }
    return absl::OkStatus();
  }

  // Ends the meeting by an error of this rank.
  absl::Status OwnTrouble(const absl::Status& status) {
    to_tell_ = absl::StrCat("rank ", meeting_.rank.value(), ": ", std::string(status.message()));
    return failure_ = status;
  }

  // Returns OK if all ranks have loaded the step, and kDataLoss if it is damaged.
  absl::Status Try(const ListedStep& step) {
    const std::string key = ProposalKey(round_);
    if (failure_ = Say({.verdict = Verdict::kTry, .step = step.step}); !failure_.ok())
      return failure_;
    const absl::Status own = TryLoad(options_.directory, step.step, load_);
    const absl::StatusOr<Complaint> others = FirstComplaint(meeting_, key);
    if (!others.ok()) return failure_ = others.status();
    if (!own.ok() && !checkpoint::IsDamage(own)) return OwnTrouble(own);
    if (others->trouble) {
      to_tell_ = others->text;
      return failure_ = absl::UnavailableError(others->text);
    }
    if (!own.ok()) return absl::DataLossError(std::string(own.message()));
    return others->text.empty() ? absl::OkStatus() : absl::DataLossError(others->text);
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
  absl::Status failure_;  // ends the meeting: of the rendezvous itself, or the trouble of one rank
  std::string to_tell_;   // what the other ranks hear of that trouble
  std::vector<checkpoint::PassedOver> passed_over_;
};

absl::StatusOr<control::Resumed> Follow(const RankMeeting& meeting, const ResumeOptions& options,
                                        const LoadStep& load) {
  StepId loaded_step;
  for (int round = 0;; ++round) {
    const std::string key = ProposalKey(round);
    ASSIGN_OR_RETURN(const std::string text, meeting.rendezvous->Wait(key, kPatience));
    ASSIGN_OR_RETURN(const Word word, Word::Parse(text, loaded_step));
    if (word.verdict == Verdict::kRefuse) return word.refusal;
    if (word.verdict != Verdict::kTry) return control::Resumed{.step = word.step};
    const absl::Status loaded = TryLoad(options.directory, word.step, load);
    const bool trouble = !loaded.ok() && !checkpoint::IsDamage(loaded);
    RETURN_IF_ERROR(
        Answer(meeting, key,
               absl::StrCat(trouble ? std::string(kTrouble) : "", std::string(loaded.message()))));
    if (trouble) return loaded;
    if (loaded.ok()) loaded_step = word.step;
  }
}

constexpr char kShared[] = "shared";
// Once there are complaints, rank 0 says under this key whose storage differs from the others'.
constexpr char kOddOne[] = "shared-odd";
constexpr char kFirstIsOdd[] = "rank 0", kOthersAreOdd[] = "others";

std::string NotShared(const std::string& complaint) {
  return absl::StrCat("all workers must share one checkpoint root; ", complaint,
                      ", which rank 0 wrote; mount the same storage under every --checkpoint-root");
}

// The part of the other ranks.
absl::Status CheckSharedWithFirst(const RankMeeting& meeting, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string written, meeting.rendezvous->Wait(kShared, kPatience));
  const bool seen = ReadAll(path) == written;
  const std::string complaint = absl::StrCat("does not see ", path);
  RETURN_IF_ERROR(Answer(meeting, kShared, seen ? "" : complaint));
  if (seen) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string odd, meeting.rendezvous->Wait(kOddOne, kPatience));
  const std::string error = NotShared(absl::StrCat("rank ", meeting.rank.value(), ": ", complaint));
  return odd == kFirstIsOdd ? absl::UnavailableError(error) : absl::FailedPreconditionError(error);
}

absl::Status LookForSaved(const SavedOptions& options) {
  const auto refuse = [&](const std::string& what) {
    return UnusableField(
        {.field = kDirectoryField,
         .value = options.directory,
         .rule = absl::StrCat("must show the checkpoint of step ", options.step.value(),
                              ", which this job has; on this worker ", what),
         .fix = "mount the storage of the other workers under --checkpoint-root; if that "
                "checkpoint is lost, submit the job again, which takes the newest that is there"});
  };
  const absl::StatusOr<std::string> directory = options.resolve();
  if (!directory.ok()) return refuse(std::string(directory.status().message()));
  // Listing opens the directory anew.
  const absl::StatusOr<std::vector<ListedStep>> steps = checkpoint::ListSteps(*directory);
  if (!steps.ok()) return refuse(std::string(steps.status().message()));
  StepId newest;
  for (const ListedStep& step : *steps) {
    const bool has_name = step.state == checkpoint::StepState::kComplete ||
                          step.state == checkpoint::StepState::kDamaged;
    if (!has_name || (options.at_most != StepId() && step.step > options.at_most)) continue;
    newest = std::max(newest, step.step);
  }
  if (newest >= options.step) return absl::OkStatus();
  return refuse(newest > StepId(0) ? absl::StrCat("the newest is of step ", newest.value())
                                   : "there is none");
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
  const std::string path = absl::StrCat(directory, "/", name);
  if (meeting.rank != Rank(0)) return CheckSharedWithFirst(meeting, path);
  const std::string text = RandomText();
  if (const absl::Status written = WriteNew(path, text); !written.ok()) {
    return UnwritableDirectory(kDirectoryField, directory, written,
                               "name another one under the checkpoint root");
  }
  RETURN_IF_ERROR(meeting.rendezvous->Set(kShared, text));
  const absl::StatusOr<Complaint> complaint = FirstComplaint(meeting, kShared);
  std::remove(path.c_str());
  RETURN_IF_ERROR(complaint.status());
  if (complaint->text.empty()) return absl::OkStatus();
  // If no other rank sees the file, and there are at least two, this worker is the odd one.
  const int others = meeting.num_ranks - 1;
  const bool odd = complaint->count == others && others > 1;
  RETURN_IF_ERROR(meeting.rendezvous->Set(kOddOne, odd ? kFirstIsOdd : kOthersAreOdd));
  const std::string error = NotShared(complaint->text);
  return odd || others == 1 ? absl::FailedPreconditionError(error) : absl::UnavailableError(error);
}

absl::Status AwaitSaved(const SavedOptions& options) {
  if (options.step == StepId(0)) return absl::OkStatus();
  absl::Status seen = LookForSaved(options);
  for (absl::Duration waited; !seen.ok() && waited < options.patience; waited += kLookAgain) {
    if (options.given_up != nullptr && options.given_up->load()) break;
    options.pause(kLookAgain);
    seen = LookForSaved(options);
  }
  return seen;
}

absl::StatusOr<control::Resumed> AgreeOnResume(const RankMeeting& meeting,
                                               const ResumeOptions& options, const LoadStep& load) {
  if (options.wanted == "none") return control::Resumed();
  if (meeting.rank == Rank(0)) return Proposer(meeting, options, load).Run();
  return Follow(meeting, options, load);
}

}  // namespace takt::session
