// SPDX-License-Identifier: Apache-2.0
// Packs documents into rows of one length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/data/document_line.h"

namespace takt::data {

// Puts each document into the first of a few open rows that has room for it, and opens a row if
// none has. The rows depend on the documents and their order alone. One caller at a time.
class RowPacker {
 public:
  // Precondition: context >= 1.
  explicit RowPacker(int context) : context_(static_cast<std::size_t>(context)) {}

  // Precondition: it has 1 to `context` tokens.
  void Add(const TrainingDocument& document);
  // Fills up and closes the rows that are open. Each gets a last document of padding, of which
  // nothing is scored.
  void Finish();

  // [rows, context] each, of the rows that are closed. documents: numbers from 0 in each row.
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  const std::vector<std::int32_t>& targets() const { return targets_; }
  const std::vector<std::int32_t>& documents() const { return documents_; }
  std::int64_t padding() const { return padding_; }  // tokens

 private:
  struct Row {
    std::vector<std::int32_t> tokens, targets, documents;
    std::int32_t num_documents = 0;
  };
  void Close(std::size_t index);

  const std::size_t context_;
  std::vector<Row> open_;  // in the order in which they were opened
  std::vector<std::int32_t> tokens_, targets_, documents_;
  std::int64_t padding_ = 0;
};

}  // namespace takt::data
