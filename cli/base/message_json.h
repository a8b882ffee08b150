// SPDX-License-Identifier: Apache-2.0
// Turns messages into the JSON that `-o json` prints. It is protobuf's own mapping with the field
// names of the .proto, with these differences: every number is a JSON number (64-bit ones, too),
// doubles read back to the same bits, a double that is not finite is null, timestamps are RFC 3339
// text, and enumerators are short: `RUNNING`, or as job files spell them (`gpt2`) in a job spec,
// where the number that stands for `auto` is that word, and what nobody chose is left out. So a job
// spec can be submitted again.
#pragma once

#include <string>
#include <utility>

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "takt/v1/job.pb.h"

namespace takt::cli {

using Json = nlohmann::ordered_json;

// Scalars without presence always appear. Unset optional fields and messages are left out.
Json ToJson(const google::protobuf::Message& message);

// Returns {name: [messages]}.
template <class Messages>
Json ListJson(const char* name, const Messages& messages) {
  Json list = Json::array();
  for (const google::protobuf::Message& message : messages) list.push_back(ToJson(message));
  Json json;
  json[name] = std::move(list);
  return json;
}

// Returns one line of a stream of steps: the report, and the job that it belongs to.
Json StepJson(const std::string& job, const v1::StepReport& step);

// Returns one line. Replacement characters stand for text that is not UTF-8.
std::string Dump(const Json& json);

// Returns "RUNNING" for JOB_STATE_RUNNING.
std::string ShortName(const google::protobuf::EnumValueDescriptor& value);
std::string StateName(v1::JobState state);

}  // namespace takt::cli
