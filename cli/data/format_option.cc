// SPDX-License-Identifier: Apache-2.0
#include "cli/data/format_option.h"

#include <string>
#include <utility>
#include <vector>

#include "cli/base/one_of.h"
#include "common/data/token_file.h"

namespace takt::cli {

using config::DataFormat;

CLI::Option* AddFormat(CLI::App& app, std::optional<DataFormat>& format,
                       const std::string& description) {
  std::vector<std::pair<std::string, DataFormat>> formats;
  for (int i = static_cast<int>(DataFormat::kBytes);
       i <= static_cast<int>(DataFormat::kSafetensors); ++i) {
    const auto each = static_cast<DataFormat>(i);
    formats.emplace_back(data::NameOf(each), each);
  }
  return app.add_option("--format", format, description)
      ->transform(OneOf(std::move(formats)))
      ->type_name("");
}

}  // namespace takt::cli
