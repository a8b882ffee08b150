// SPDX-License-Identifier: Apache-2.0
// Every message of the attachment is read and written back without a loss. The fields are set
// through reflection: a field that is added to a message and forgotten in a *_serde.cc fails here.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/control/assignment_serde.h"
#include "common/control/attachment_serde.h"
#include "common/control/rank_status_serde.h"
#include "common/control/reports_serde.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::control {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

// Decides whether to set a field, and gives the number that its value is made of.
struct Choice {
  std::function<bool()> set;
  std::function<std::int32_t()> number;
};

void Fill(Message& message, const Choice& choice);

void FillOne(Message& message, const FieldDescriptor& field, const Choice& choice) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const bool add = field.is_repeated();
  const std::int32_t number = choice.number();
  const std::string text = field.name() + std::to_string(number);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return add ? reflection.AddInt32(&message, &field, number)
                 : reflection.SetInt32(&message, &field, number);
    case FieldDescriptor::CPPTYPE_INT64:
      return add ? reflection.AddInt64(&message, &field, number)
                 : reflection.SetInt64(&message, &field, number);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return add ? reflection.AddDouble(&message, &field, number + 0.5)
                 : reflection.SetDouble(&message, &field, number + 0.5);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, &field, true);
    case FieldDescriptor::CPPTYPE_STRING:
      return add ? reflection.AddString(&message, &field, text)
                 : reflection.SetString(&message, &field, text);
    case FieldDescriptor::CPPTYPE_ENUM:  // the last value
      return reflection.SetEnum(&message, &field,
                                field.enum_type()->value(field.enum_type()->value_count() - 1));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(add ? *reflection.AddMessage(&message, &field)
                      : *reflection.MutableMessage(&message, &field),
                  choice);
    default:
      ADD_FAILURE() << field.full_name() << " has a type that this test cannot set";
  }
}

void Fill(Message& message, const Choice& choice) {
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    for (int count = field.is_repeated() ? 2 : 1; count > 0 && choice.set(); --count) {
      FillOne(message, field, choice);
    }
  }
  // A level is a word. Any other text would be read as info.
  if (auto* line = dynamic_cast<v1::LogLine*>(&message)) line->set_level("warning");
}

Choice Everything() {
  auto number = std::make_shared<std::int32_t>(0);
  return {.set = [] { return true; }, .number = [number] { return ++*number; }};
}

Choice Anything() {
  return {.set = [] { return *rc::gen::arbitrary<bool>(); },
          .number = [] { return *rc::gen::inRange<std::int32_t>(0, 1 << 30); }};
}

template <class Proto>
std::string Difference(const Proto& before, const Proto& after) {
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  differencer.Compare(before, after);
  return difference;
}

// Calls `test` for each alternative of the oneof, with an empty message and that alternative.
template <class Proto>
void ForEachAlternative(const std::function<void(Proto&, const FieldDescriptor&)>& test) {
  const google::protobuf::OneofDescriptor& oneof = *Proto::descriptor()->oneof_decl(0);
  for (int i = 0; i < oneof.field_count(); ++i) {
    Proto proto;
    test(proto, *oneof.field(i));
  }
}

template <class Proto>
void ExpectNothingIsLost(const Proto& proto) {
  EXPECT_EQ(Difference(proto, ToProto(*FromProto(proto))), "") << proto.DebugString();
}

// Only a real assignment can be read. assignment_serde_test.cc has its round trip.
bool IsPrepare(const FieldDescriptor& field) {
  return field.message_type() == v1::Prepare::descriptor();
}

TEST(RoundTrip, AWorkersMessagesKeepEveryField) {
  ForEachAlternative<v1::AttachRequest>([](v1::AttachRequest& proto, const FieldDescriptor& field) {
    FillOne(proto, field, Everything());
    ExpectNothingIsLost(proto);
  });
}

TEST(RoundTrip, CommandsKeepEveryField) {
  ForEachAlternative<v1::AttachResponse>(
      [](v1::AttachResponse& proto, const FieldDescriptor& field) {
        if (IsPrepare(field)) return;
        FillOne(proto, field, Everything());
        ExpectNothingIsLost(proto);
      });
}

TEST(RoundTrip, ReportsKeepEveryField) {
  ForEachAlternative<v1::StreamBulkRequest>(
      [](v1::StreamBulkRequest& proto, const FieldDescriptor& field) {
        FillOne(proto, field, Everything());
        if (proto.has_log()) proto.set_job("j");
        ExpectNothingIsLost(proto);
      });
  v1::StreamBulkResponse proto;
  Fill(proto, Everything());
  EXPECT_EQ(Difference(proto, ToProto(FromProto(proto))), "");
}

TEST(RoundTrip, StoredPartsKeepEveryField) {
  v1::RankStatus status;
  Fill(status, Everything());
  EXPECT_EQ(Difference(status, ToProto(FromProto(status))), "");
  v1::BoundRank bound;
  Fill(bound, Everything());
  EXPECT_EQ(Difference(bound, ToProto(FromProto(bound))), "");
  v1::StageAssignment stage;
  Fill(stage, Everything());
  EXPECT_EQ(Difference(stage, ToProto(FromProto(stage))), "");
  v1::CheckpointFile file;
  Fill(file, Everything());
  EXPECT_EQ(Difference(file, ToProto(FromProto(file))), "");
}

TEST(RoundTrip, WhatIsNotKnownIsNothing) {
  EXPECT_FALSE(FromProto(v1::AttachRequest()).has_value());
  EXPECT_FALSE(FromProto(v1::AttachResponse()).has_value());
  EXPECT_FALSE(FromProto(v1::StreamBulkRequest()).has_value());
  v1::AttachRequest request;
  request.mutable_update()->set_job("j");
  EXPECT_FALSE(FromProto(request).has_value());
  request.mutable_update()->set_phase(static_cast<v1::JobUpdate::Phase>(99));
  EXPECT_FALSE(FromProto(request).has_value());
}

// Fields that are left out are read as their defaults. A second round trip changes nothing.
template <class Proto>
void CheckThatReadingIsStable(Proto& proto, const FieldDescriptor& field) {
  if (IsPrepare(field)) return;
  FillOne(proto, field, Anything());
  const auto read = FromProto(proto);
  if (!read.has_value()) return;
  const auto written = ToProto(*read);
  RC_ASSERT(Difference(written, ToProto(*FromProto(written))) == "");
}

RC_GTEST_PROP(RoundTripProperty, WhatWasReadIsKept, ()) {
  ForEachAlternative<v1::AttachRequest>(CheckThatReadingIsStable<v1::AttachRequest>);
  ForEachAlternative<v1::AttachResponse>(CheckThatReadingIsStable<v1::AttachResponse>);
  ForEachAlternative<v1::StreamBulkRequest>(CheckThatReadingIsStable<v1::StreamBulkRequest>);
}

}  // namespace
}  // namespace takt::control
