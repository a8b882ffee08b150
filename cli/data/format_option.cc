// SPDX-License-Identifier: Apache-2.0
#include "cli/data/format_option.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/data/token_file.h"

namespace takt::cli {

using config::DataFormat;

CLI::Option* AddFormat(CLI::App& app, std::optional<DataFormat>& format,
                       const std::string& description) {
  std::map<std::string, DataFormat> formats;
  std::string names;
  for (int i = static_cast<int>(DataFormat::kBytes);
       i <= static_cast<int>(DataFormat::kSafetensors); ++i) {
    const auto each = static_cast<DataFormat>(i);
    formats[data::NameOf(each)] = each;
    absl::StrAppend(&names, names.empty() ? "" : ",", data::NameOf(each));
  }
  return app.add_option("--format", format, description)
      ->transform(CLI::CheckedTransformer(formats).description("{" + names + "}"))
      ->type_name("");
}

}  // namespace takt::cli
