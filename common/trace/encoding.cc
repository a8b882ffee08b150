// SPDX-License-Identifier: Apache-2.0
#include "common/trace/encoding.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::trace {
namespace {

constexpr int kMaxVarintBytes = 10;
constexpr std::uint64_t kBodyOnly = 1, kWithoutStalls = 2, kWithoutMeetings = 3;
// Ten thousand years of a steady clock would not reach this, and sums of two values stay in range.
constexpr std::int64_t kMaxNanos = std::numeric_limits<std::int64_t>::max() / 4;

void PutVarint(std::uint64_t value, std::string& bytes) {
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
}

std::uint64_t ZigZag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
std::int64_t UnZigZag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

void PutSpans(const std::vector<Span>& spans, std::int64_t previous_end, std::string& bytes) {
  PutVarint(spans.size(), bytes);
  for (const Span& span : spans) {
    PutVarint(ZigZag(span.start_nanos - previous_end), bytes);
    PutVarint(static_cast<std::uint64_t>(span.end_nanos - span.start_nanos), bytes);
    previous_end = span.end_nanos;
  }
}

// The lowest version that can say all of a trace, so that each trace has one form.
std::uint64_t VersionOf(const StepTrace& trace) {
  if (!trace.meetings.empty()) return kEncodingVersion;
  if (!trace.stalls.empty()) return kWithoutMeetings;
  return trace.prologue.empty() ? kBodyOnly : kWithoutStalls;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  absl::StatusOr<std::uint64_t> Varint() {
    std::uint64_t value = 0;
    for (int i = 0; i < kMaxVarintBytes; ++i) {
      if (at_ == bytes_.size()) return Bad("is cut off");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      const bool overflows = i == kMaxVarintBytes - 1 && byte > 1;
      const bool overlong = i > 0 && byte == 0;
      if (overflows || overlong) return Bad("has a number that is not in its shortest form");
      value |= std::uint64_t{byte & 0x7fU} << (7 * i);
      if (byte < 0x80) return value;
    }
    return Bad("has a number that is too long");
  }

  absl::StatusOr<std::int64_t> UpTo(std::int64_t limit) {
    ASSIGN_OR_RETURN(const std::uint64_t value, Varint());
    if (value > static_cast<std::uint64_t>(limit)) return Bad("has a number out of range");
    return static_cast<std::int64_t>(value);
  }

  absl::StatusOr<std::vector<Span>> Spans(std::int64_t previous_end) {
    // Each instruction takes at least two bytes, so no count makes us reserve more memory than
    // that.
    ASSIGN_OR_RETURN(const std::int64_t count, UpTo(static_cast<std::int64_t>(left() / 2)));
    std::vector<Span> spans;
    spans.reserve(count);
    for (std::int64_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(const std::uint64_t zigzag, Varint());
      ASSIGN_OR_RETURN(const std::int64_t duration, UpTo(kMaxNanos));
      const std::int64_t gap = UnZigZag(zigzag);
      if (gap > kMaxNanos || gap < -kMaxNanos) return Bad("has a time out of range");
      Span span{.start_nanos = previous_end + gap};
      span.end_nanos = span.start_nanos + duration;
      if (span.start_nanos < 0 || span.end_nanos > kMaxNanos) return Bad("has a time out of range");
      spans.push_back(span);
      previous_end = span.end_nanos;
    }
    return spans;
  }

  std::size_t left() const { return bytes_.size() - at_; }

  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("step trace ", what, " at byte ", at_, " of ", bytes_.size()));
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

}  // namespace

std::string Encode(const StepTrace& trace) {
  const std::uint64_t version = VersionOf(trace);
  std::string bytes;
  bytes.reserve(32 + 8 * (trace.prologue.size() + trace.body.size() + trace.stalls.size() +
                          trace.meetings.size()));
  PutVarint(version, bytes);
  PutVarint(static_cast<std::uint64_t>(trace.rank.value()), bytes);
  PutVarint(static_cast<std::uint64_t>(trace.step.value()), bytes);
  PutVarint(static_cast<std::uint64_t>(trace.start_nanos), bytes);
  PutSpans(trace.body, trace.start_nanos, bytes);
  if (version > kBodyOnly) PutSpans(trace.prologue, trace.start_nanos, bytes);
  if (version > kWithoutStalls) PutSpans(trace.stalls, trace.start_nanos, bytes);
  if (version > kWithoutMeetings) PutSpans(trace.meetings, trace.start_nanos, bytes);
  return bytes;
}

absl::StatusOr<StepTrace> Decode(std::string_view bytes) {
  constexpr std::int64_t kMaxRank = std::numeric_limits<std::int32_t>::max();
  Reader reader(bytes);
  ASSIGN_OR_RETURN(const std::uint64_t version, reader.Varint());
  if (version < kBodyOnly || version > kEncodingVersion) {
    return reader.Bad(
        absl::StrCat("is of version ", version, ", expected at most ", kEncodingVersion));
  }
  StepTrace trace;
  ASSIGN_OR_RETURN(const std::int64_t rank, reader.UpTo(kMaxRank));
  ASSIGN_OR_RETURN(const std::int64_t step, reader.UpTo(kMaxNanos));
  ASSIGN_OR_RETURN(trace.start_nanos, reader.UpTo(kMaxNanos));
  ASSIGN_OR_RETURN(trace.body, reader.Spans(trace.start_nanos));
  if (version > kBodyOnly) {
    ASSIGN_OR_RETURN(trace.prologue, reader.Spans(trace.start_nanos));
  }
  if (version > kWithoutStalls) {
    ASSIGN_OR_RETURN(trace.stalls, reader.Spans(trace.start_nanos));
    if (trace.stalls.size() > kMostStalls) return reader.Bad("has too many stalls");
  }
  if (version > kWithoutMeetings) {
    ASSIGN_OR_RETURN(trace.meetings, reader.Spans(trace.start_nanos));
  }
  if (version != VersionOf(trace)) return reader.Bad("is of a version for more than it has");
  trace.rank = Rank(static_cast<std::int32_t>(rank));
  trace.step = StepId(step);
  if (reader.left() != 0) return reader.Bad("goes on after its last instruction");
  return trace;
}

}  // namespace takt::trace
