// SPDX-License-Identifier: Apache-2.0
// Tokenizes files on all cores: threads encode units of text, and one writer puts them in the
// output in their order. So the output is the same for any number of threads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/data/document_encoder.h"
#include "cli/data/text_input.h"
#include "common/base/clock.h"
#include "common/data/token_writer.h"
#include "common/tokenizer/tokenizer_folder.h"

namespace takt::cli {

struct TokenizeSettings {
  std::vector<InputFile> inputs;
  DocumentOptions documents;
  data::TokenWriterOptions out;
  int threads = 1;
};

struct TokenizeResult {
  DocumentCounts counts;
  std::int64_t resumed_bytes = 0;  // of the input, which an earlier run had done
};

// Called after each unit, with what is in the output now and what an earlier run had done.
using TokenizeProgress = std::function<void(const TokenizeResult& so_far)>;

// Continues where an earlier run of the same settings and inputs stopped; a run that fails or is
// killed leaves its work for the next one. The output appears when it is whole, with the small file
// of common/data/token_origin.h. Errors, all with a FieldError: kInvalidArgument (a document, or
// there are none), kFailedPrecondition (a file cannot be read or written).
absl::StatusOr<TokenizeResult> RunTokenize(const TokenizeSettings& settings,
                                           const tokenizer::TokenizerFolder& folder,
                                           const Clock& clock, const TokenizeProgress& progress);

}  // namespace takt::cli
