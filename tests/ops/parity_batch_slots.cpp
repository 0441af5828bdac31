// SPDX-License-Identifier: Apache-2.0
// Batch slots, table entries and copied pages: what the operators must write, bit by bit.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "ops/compare.h"
#include "ops/operator_parity.h"
#include "sampling/output_record.h"

namespace koho::testing {
namespace {

/// A result that is left as poison.
HostTensor poison(DType dtype, const Shape& shape) {
  HostTensor tensor(dtype, shape);
  std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{0xFF});
  return tensor;
}

/// Whether the output, `token` included, ends with a stop of the record: found from the whole list
/// of what is known of it.
bool completes_stop(const std::int32_t* record, std::int32_t token) {
  std::vector<std::int32_t> known;
  const std::int32_t output = record[OutputRecord::kOutput];
  for (std::int32_t i = std::max(0, output - OutputRecord::kRecentTokens + 1); i < output; ++i)
    known.push_back(record[OutputRecord::kRecent + i % OutputRecord::kRecentTokens]);
  known.push_back(token);
  std::int64_t at = OutputRecord::kStops;
  while (at < OutputRecord::kWords && record[at] != 0) {
    const std::vector<std::int32_t> stop(record + at + 1, record + at + 1 + record[at]);
    at += 1 + record[at];
    if (stop.size() > 1 && output < record[OutputRecord::kOutputMin]) continue;
    if (stop.size() <= known.size() && std::equal(stop.rbegin(), stop.rend(), known.rbegin()))
      return true;
  }
  return false;
}

}  // namespace

Comparison compare_reference(const bench::GatherInputIdsOperands& operands, const OpCaseOptions&) {
  const bench::BatchSlotsOperands& in = operands.batch_slots;
  std::vector<std::int64_t> ids = operands.given;
  std::vector<std::int64_t> slots = operands.slots;
  std::vector<std::int64_t> contexts = operands.contexts;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] >= 0) continue;
    const std::int64_t batch_slot = -1 - ids[t];
    ids[t] = in.last_sampled.as<std::int32_t>()[batch_slot];
    if (in.has_ended(batch_slot)) slots[t] = -1;
  }
  // What lies behind a context is left as it was.
  const std::int64_t width = in.pages.shape[1];
  HostTensor tables = poison(DType::i32, {static_cast<std::int64_t>(contexts.size()), width});
  for (std::size_t s = 0; s < contexts.size(); ++s) {
    const std::int64_t batch_slot = operands.of_sequences[s];
    if (in.has_ended(batch_slot)) contexts[s] = 0;
    for (std::int64_t i = 0; 64 * i < contexts[s]; ++i)
      tables.as<std::int32_t>()[static_cast<std::int64_t>(s) * width + i] =
          in.pages.as<std::int32_t>()[batch_slot * width + i];
  }
  return [=](const Results& results) {
    return compare_bits("token_ids", results.at("token_ids"), integers(DType::i32, ids)) +
           compare_bits("slots", results.at("slots"), integers(DType::i64, slots)) +
           compare_bits("context_lengths", results.at("context_lengths"),
                        integers(DType::i32, contexts)) +
           compare_bits("page_tables", results.at("page_tables"), tables);
  };
}

Comparison compare_reference(const bench::CommitSampledOperands& operands, const OpCaseOptions&) {
  bench::BatchSlotsOperands after = operands.batch_slots;
  // Rows of no batch slot are left as they were.
  HostTensor ends = poison(DType::u8, {static_cast<std::int64_t>(operands.ids.size())});
  for (std::size_t r = 0; r < operands.ids.size(); ++r) {
    const std::int64_t batch_slot = operands.of_rows[r];
    if (batch_slot < 0) continue;
    std::int32_t* record = after.outputs.as<std::int32_t>() + batch_slot * OutputRecord::kWords;
    RowEnd& end = reinterpret_cast<RowEnd*>(ends.as<std::uint8_t>())[r];
    end = RowEnd::frozen;
    if (record[OutputRecord::kEnded] != 0) continue;
    const auto id = static_cast<std::int32_t>(operands.ids[r]);
    after.last_sampled.as<std::int32_t>()[batch_slot] = std::max(id, 0);
    end = RowEnd::none;
    if (id < 0) continue;
    end = completes_stop(record, id) ? RowEnd::ended : RowEnd::none;
    record[OutputRecord::kEnded] = end == RowEnd::ended ? 1 : 0;
    const std::int32_t output = record[OutputRecord::kOutput]++;
    record[OutputRecord::kRecent + output % OutputRecord::kRecentTokens] = id;
  }
  return [=](const Results& results) {
    return compare_bits("ends", results.at("ends"), ends) +
           compare_bits("last_sampled", results.at("last_sampled"), after.last_sampled) +
           compare_bits("outputs", results.at("outputs"), after.outputs);
  };
}

Comparison compare_reference(const bench::SetEntriesOperands& operands, const OpCaseOptions&) {
  HostTensor table = operands.table;
  const auto* pairs = operands.pairs.as<std::int32_t>();
  for (std::int64_t i = 0; i < operands.pairs.shape[0]; ++i)
    table.as<std::int32_t>()[pairs[2 * i]] = pairs[2 * i + 1];
  return [=](const Results& results) { return compare_bits("table", results.at("table"), table); };
}

Comparison compare_reference(const bench::CopyPagesOperands& operands, const OpCaseOptions&) {
  return [&operands](const Results& results) {
    std::string faults;
    for (const auto& [name, before] : operands.parts) {
      HostTensor after = before;
      const auto bytes = static_cast<std::ptrdiff_t>(after.bytes.size()) / after.shape[0];
      std::copy_n(before.bytes.begin() + operands.from * bytes, bytes,
                  after.bytes.begin() + operands.to * bytes);
      faults += compare_bits(name, results.at(name), after);
    }
    return faults;
  };
}

}  // namespace koho::testing
