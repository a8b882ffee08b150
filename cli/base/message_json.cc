// SPDX-License-Identifier: Apache-2.0
#include "cli/base/message_json.h"

#include <cctype>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/timestamp.pb.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Returns the JSON of a field of `message`, or of entry `index` of a repeated field.
class FieldReader {
 public:
  FieldReader(const Message& message, const FieldDescriptor& field, int index)
      : message_(message), reflection_(*message.GetReflection()), field_(field), index_(index) {}

  Json Read() const {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return CountOrAuto(Get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
      case FieldDescriptor::CPPTYPE_INT64:
        return Get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
      case FieldDescriptor::CPPTYPE_BOOL:
        return Get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumName(*Get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum));
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = Get(&Reflection::GetString, &Reflection::GetRepeatedString);
        return field_.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return ToJson(field_.is_repeated()
                          ? reflection_.GetRepeatedMessage(message_, &field_, index_)
                          : reflection_.GetMessage(message_, &field_));
    }
    return nullptr;
  }

 private:
  template <class T>
  T Get(T (Reflection::*one)(const Message&, const FieldDescriptor*) const,
        T (Reflection::*many)(const Message&, const FieldDescriptor*, int) const) const {
    return field_.is_repeated() ? (reflection_.*many)(message_, &field_, index_)
                                : (reflection_.*one)(message_, &field_);
  }

  // Job specs have a number for `auto` in some fields.
  Json CountOrAuto(std::int32_t number) const {
    const bool is_auto = number != 0 && number == field_.options().GetExtension(v1::auto_number);
    return is_auto ? Json("auto") : Json(number);
  }

  Json EnumName(const google::protobuf::EnumValueDescriptor& value) const {
    const std::string name = ShortName(value);
    const bool spelled_as_in_files = value.file() == v1::JobSpec::descriptor()->file();
    return spelled_as_in_files ? absl::AsciiStrToLower(name) : name;
  }

  const Message& message_;
  const Reflection& reflection_;
  const FieldDescriptor& field_;
  const int index_;
};

// Returns whether the field of a job spec is a choice that nobody made. A job file cannot say so.
bool IsLeftOut(const Message& message, const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM && !field.is_repeated() &&
         field.enum_type()->file() == v1::JobSpec::descriptor()->file() &&
         message.GetReflection()->GetEnumValue(message, &field) == 0;
}

std::string TimestampText(const google::protobuf::Timestamp& timestamp) {
  const absl::Time time =
      absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E*SZ", time, absl::UTCTimeZone());
}

}  // namespace

Json ToJson(const Message& message) {
  if (const auto* timestamp = dynamic_cast<const google::protobuf::Timestamp*>(&message)) {
    return TimestampText(*timestamp);
  }
  const Reflection& reflection = *message.GetReflection();
  Json json = Json::object();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated()) {
      Json list = Json::array();
      for (int k = 0; k < reflection.FieldSize(message, &field); ++k) {
        list.push_back(FieldReader(message, field, k).Read());
      }
      json[field.name()] = std::move(list);
    } else if ((!field.has_presence() || reflection.HasField(message, &field)) &&
               !IsLeftOut(message, field)) {
      json[field.name()] = FieldReader(message, field, 0).Read();
    }
  }
  return json;
}

Json StepJson(const std::string& job, const v1::StepReport& step) {
  Json json;
  json["job"] = job;
  json.update(ToJson(step));
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ShortName(const google::protobuf::EnumValueDescriptor& value) {
  // The name of an enumerator begins with that of its type: JobState has JOB_STATE_RUNNING.
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (std::isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  prefix += '_';
  return absl::StartsWith(value.name(), prefix) ? value.name().substr(prefix.size()) : value.name();
}

std::string StateName(v1::JobState state) {
  const auto* value = v1::JobState_descriptor()->FindValueByNumber(state);
  return value != nullptr ? ShortName(*value) : std::to_string(static_cast<int>(state));
}

}  // namespace takt::cli
