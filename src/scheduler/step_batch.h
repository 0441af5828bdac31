// SPDX-License-Identifier: Apache-2.0
// What one step computes, as the scheduler decided it: sequences, token ranges and pages; no token
// ids and no sampling parameters. The engine's plan writer adds those and makes a StepPlan of it.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"

namespace koho {

/// A row of a step: tokens start .. start+count-1 of a sequence. One of a sequence, but for output
/// that is computed again (Limits::redecodes_output): a row a token.
struct StepRow {
  SequenceId sequence;
  std::int32_t batch_slot = -1;
  std::int32_t start = 0;
  std::int32_t count = 0;
  bool samples = false;  // the last token's logits are wanted
  bool takes_last =
      false;  // the only token is the one this batch slot sampled last, unknown to the host
  bool admitted = false;  // first row since admission
};

/// `count` entries of a batch slot's page table, from `first` on; the pages stand in run_pages in
/// order.
struct PageRun {
  std::int32_t batch_slot = -1;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// Whole page, before anything else of the step.
struct PageCopy {
  PageId from = kNoPage;
  PageId to = kNoPage;
};

struct StepBatch {
  std::int64_t step = 0;
  std::vector<StepRow> rows;   // rows of one token first
  std::int32_t decodes = 0;    // the number of these that are decodes, first of all
  std::int32_t redecoded = 0;  // of these, output that is computed again: prefill but for its form
  std::int32_t tokens = 0;
  std::int32_t prefill_cost = 0;  // of the prefill budget: the tokens of prefill, or more where
                                  // Limits::attention_tokens counts
  std::int32_t samples = 0;
  std::int32_t history_tokens = 0;  // of admitted sequences that want history
  std::vector<PageRun> runs;        // applied in order
  std::vector<PageId> run_pages;
  std::vector<PageCopy> copies;
  std::vector<SequenceId> preempted;  // lost their pages since the last step; may have ended
  std::vector<SequenceId> yielded;    // of these, who left batch slot or pages to another client
};

}  // namespace koho
