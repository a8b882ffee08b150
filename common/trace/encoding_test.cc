// SPDX-License-Identifier: Apache-2.0
#include "common/trace/encoding.h"

#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "rapidcheck/gtest.h"

namespace takt::trace {
namespace {

using ::testing::HasSubstr;

RC_GTEST_PROP(Encoding, ReadsBackWhatWasWritten, ()) {
  StepTrace trace{.rank = Rank(*rc::gen::inRange(0, 4096)),
                  .step = StepId(*rc::gen::inRange<std::int64_t>(1, 1'000'000)),
                  .start_nanos = *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 60)};
  const auto spans = *rc::gen::container<std::vector<std::pair<std::int64_t, std::int64_t>>>(
      rc::gen::pair(rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 59),
                    rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 40)));
  for (const auto& [start, length] : spans) trace.body.push_back({start, start + length});
  if (*rc::gen::arbitrary<bool>()) trace.prologue = trace.body;
  if (*rc::gen::arbitrary<bool>()) trace.stalls = trace.body;
  if (trace.stalls.size() > kMostStalls) trace.stalls.resize(kMostStalls);
  if (*rc::gen::arbitrary<bool>()) trace.meetings = trace.body;
  const auto decoded = Decode(Encode(trace));
  RC_ASSERT(decoded.ok());
  RC_ASSERT(*decoded == trace);
}

RC_GTEST_PROP(Encoding, TakesNothingElse, ()) {
  const auto bytes = *rc::gen::arbitrary<std::string>();
  const auto decoded = Decode(bytes);
  // A trace that can be read is written the same way, because each trace has one form.
  if (decoded.ok()) RC_ASSERT(Encode(*decoded) == bytes);
}

TEST(Encoding, RefusesEveryPartOfATraceAndAnyMore) {
  SyntheticTrace synthetic("1f1b", 2, 4);
  StepTrace& step = synthetic.Get().ranks[1].steps[1];
  step.stalls = {step.body[0], step.body[1]};
  const std::string bytes = Encode(step);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Decode(std::string_view(bytes).substr(0, length)).ok()) << length;
  }
  EXPECT_THAT(std::string(Decode(bytes + '\0').status().message()), HasSubstr("goes on after"));
}

TEST(Encoding, RefusesWhatIsNotInRange) {
  const auto refusal = [](std::string bytes) {
    const auto decoded = Decode(bytes);
    return decoded.ok() ? std::string("taken") : std::string(decoded.status().message());
  };
  using std::string_literals::operator""s;
  EXPECT_THAT(refusal("\x05"s), HasSubstr("is of version 5, expected at most 4"));
  EXPECT_THAT(refusal("\x02\x00\x01\x00\x00\x00"s), HasSubstr("version for more than it has"));
  EXPECT_THAT(refusal("\x03\x00\x01\x00\x00\x00\x00"s), HasSubstr("for more than it has"));
  EXPECT_THAT(refusal("\x04\x00\x01\x00\x00\x00\x00\x00"s), HasSubstr("for more than it has"));
  EXPECT_THAT(refusal("\x03\x00\x01\x00\x00\x00\x41"s + std::string(2 * 0x41, '\0')),
              HasSubstr("too many stalls"));
  EXPECT_THAT(refusal("\x01\x81\x00"s), HasSubstr("not in its shortest form"));
  EXPECT_THAT(refusal("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"s), HasSubstr("shortest form"));
  EXPECT_THAT(refusal("\x01\xff\xff\xff\xff\x0f\x01\x00\x00"s), HasSubstr("out of range"));
  // A count that nothing follows makes no reader reserve memory.
  EXPECT_THAT(refusal("\x01\x00\x01\x00\xff\xff\xff\xff\x0f"s), HasSubstr("out of range"));
  // The first instruction starts before time does.
  EXPECT_THAT(refusal("\x01\x00\x01\x00\x01\x01\x00"s), HasSubstr("time out of range"));
}

TEST(Encoding, TakesAFewBytesAnInstruction) {
  SyntheticTrace synthetic("interleaved-1f1b", 4, 16);
  const StepTrace& step = synthetic.Get().ranks[0].steps[1];
  EXPECT_LE(Encode(step).size(), 32 + 8 * step.body.size());
}

}  // namespace
}  // namespace takt::trace
