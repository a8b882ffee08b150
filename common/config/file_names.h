// SPDX-License-Identifier: Apache-2.0
// The names that job files use for enumerators and values of the proto.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {

// Returns an enumerator's name without the prefix of its enumeration, which its zero value shows.
// MODEL_FAMILY_GPT2 is `gpt2` in files.
inline std::string FileName(const google::protobuf::EnumValueDescriptor& value) {
  const std::string& zero = value.type()->value(0)->name();
  const std::size_t prefix = zero.size() - std::string("UNSPECIFIED").size();
  return absl::AsciiStrToLower(value.name().substr(prefix));
}

// Returns whether errors and the schema name the enumerator. Those that no job may ask for are read
// alone, so that the error says why.
inline bool IsOffered(const google::protobuf::EnumValueDescriptor& value) {
  return value.number() != 0 && value.full_name() != "takt.v1.SHARD_MODE_GRADIENTS";
}

// Returns the name of an enumerator in files, or its number if it has no name.
template <class Enum>
std::string NameOf(Enum value) {
  const auto* descriptor = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value);
  return descriptor == nullptr ? absl::StrCat(static_cast<int>(value)) : FileName(*descriptor);
}

inline std::string FileName(const google::protobuf::FieldDescriptor& field) {
  const std::string& name = field.options().GetExtension(v1::file_name);
  return name.empty() ? field.name() : name;
}

inline bool AcceptsAuto(const google::protobuf::FieldDescriptor& field) {
  return field.options().GetExtension(v1::accepts_auto);
}

// Returns the number that stands for `auto` in this field, or 0 if none does.
inline std::int32_t AutoNumber(const google::protobuf::FieldDescriptor& field) {
  return field.options().GetExtension(v1::auto_number);
}

// The auto_number of every field that has one.
inline constexpr std::int32_t kAutoNumber = -1;

}  // namespace takt::config
