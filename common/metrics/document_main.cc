// SPDX-License-Identifier: Apache-2.0
// Writes the page of metrics: metrics_document > docs/metrics.md
#include <cstdio>

#include "common/metrics/document.h"

int main() { std::fputs(takt::metrics::Document().c_str(), stdout); }
