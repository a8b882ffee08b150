// SPDX-License-Identifier: Apache-2.0
#include "cli/schedule/page.h"

#include "absl/strings/str_replace.h"
#include "cli/schedule/atlas.h"
#include "cli/schedule/page_html.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// Escapes JSON for a script element, where no text may look like the end of the element.
std::string ForScript(const Json& json) {
  return absl::StrReplaceAll(Dump(json), {{"<", "\\u003c"}});
}

}  // namespace

absl::StatusOr<std::string> RenderPage(const schedule::Schedule& schedule,
                                       const SimulatedSchedule& simulated) {
  ASSIGN_OR_RETURN(const Json atlas, MakeAtlas());
  return absl::StrReplaceAll(kSchedulePageHtml,
                             {{"TAKT_ATLAS", ForScript(atlas)},
                              {"TAKT_ASKED", ForScript(AskedEntry(schedule, simulated))}});
}

}  // namespace takt::cli
