// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/explorer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/schedule/page.h"
#include "cli/schedule/simulated_schedule.h"
#include "cli/ui/page_access.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"

namespace takt::cli {

absl::StatusOr<Explorer> LazyExplorer::Get() {
  const absl::MutexLock lock(&mutex_);
  if (explorer_.page != nullptr) return explorer_;
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   schedule::Generate("1f1b", {.num_ranks = 4, .num_microbatches = 8}));
  ASSIGN_OR_RETURN(const SimulatedSchedule simulated, SimulateSchedule(schedule, {}, {}));
  ASSIGN_OR_RETURN(const std::string page, RenderPage(schedule, simulated));
  // Only the script and the style that carry the nonce count.
  const std::string nonce = MakeToken();
  explorer_.page = std::make_shared<const std::string>(
      absl::StrReplaceAll(page, {{"<style>", absl::StrCat("<style nonce=\"", nonce, "\">")},
                                 {"<script>", absl::StrCat("<script nonce=\"", nonce, "\">")}}));
  explorer_.policy =
      absl::StrCat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                   "'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'");
  return explorer_;
}

}  // namespace takt::cli
