// SPDX-License-Identifier: Apache-2.0
#include "server/batch_record.h"

#include <iterator>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "server/stored_json.h"

namespace koho::server {
namespace {

struct StatusRow {
  BatchStatus status;
  std::string_view stored;
  std::string_view told;
  bool over;
};

constexpr StatusRow kStatuses[] = {
    {BatchStatus::validating, "validating", "validating", false},
    {BatchStatus::in_progress, "in_progress", "in_progress", false},
    {BatchStatus::finalizing, "finalizing", "finalizing", false},
    {BatchStatus::cancelling, "cancelling", "cancelling", false},
    {BatchStatus::expiring, "expiring", "finalizing", false},
    {BatchStatus::completed, "completed", "completed", true},
    {BatchStatus::failed, "failed", "failed", true},
    {BatchStatus::expired, "expired", "expired", true},
    {BatchStatus::cancelled, "cancelled", "cancelled", true},
};
static_assert(std::size(kStatuses) == kBatchStatuses);

const StatusRow& row_of(BatchStatus status) {
  return kStatuses[static_cast<std::size_t>(status)];
}

std::string faults_json(const std::vector<BatchFault>& faults) {
  std::string out = R"({"object":"list","data":[)";
  for (const BatchFault& fault : faults) {
    if (out.back() != '[') out += ',';
    out += R"({"code":)";
    append_json_string(out, fault.code);
    append_time_member(out, "line", fault.line);
    append_text_member(out, "param", fault.param);
    append_text_member(out, "message", fault.message);
    out += '}';
  }
  return out + "]}";
}

}  // namespace

std::string_view batch_status_name(BatchStatus status) {
  return row_of(status).told;
}

bool is_over(BatchStatus status) {
  return row_of(status).over;
}

void BatchRecord::enter(BatchStatus now, std::int64_t now_s) {
  status = now;
  reached[static_cast<std::size_t>(now)] = now_s;
}

std::string batch_json(const BatchRecord& record) {
  std::string out = R"({"id":)";
  append_json_string(out, record.id);
  out += R"(,"object":"batch")";
  append_text_member(out, "endpoint", record.endpoint);
  out += R"(,"errors":)";
  out += record.faults.empty() ? "null" : faults_json(record.faults);
  append_text_member(out, "input_file_id", record.input_file_id);
  append_text_member(out, "completion_window", record.completion_window);
  append_text_member(out, "status", batch_status_name(record.status));
  append_text_member(out, "output_file_id", record.output_file_id);
  append_text_member(out, "error_file_id", record.error_file_id);
  append_time_member(out, "created_at", record.created_at);
  append_time_member(out, "expires_at", record.expires_at);
  for (const BatchStatus one :
       {BatchStatus::in_progress, BatchStatus::finalizing, BatchStatus::completed,
        BatchStatus::failed, BatchStatus::expired, BatchStatus::cancelling, BatchStatus::cancelled})
    append_time_member(out, fmt::format("{}_at", row_of(one).told), record.reached_at(one));
  out += fmt::format(R"(,"request_counts":{{"total":{},"completed":{},"failed":{}}})", record.total,
                     record.completed, record.failed);
  out += R"(,"metadata":)";
  out += record.metadata.empty() ? "null" : record.metadata;
  if (!record.wait_reason.empty()) append_text_member(out, "wait_reason", record.wait_reason);
  return out + '}';
}

std::string stored_batch(const BatchRecord& record) {
  std::string out = batch_json(record);
  out.pop_back();
  append_text_member(out, "owner", record.owner);
  append_text_member(out, "stored_status", row_of(record.status).stored);
  append_time_member(out, "output_expires_s", record.output_expires_s);
  return out + "}";
}

Result<BatchRecord> read_stored_batch(std::string_view text) {
  KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
  BatchRecord record{.id = text_member(json, "id"),
                     .owner = text_member(json, "owner"),
                     .endpoint = text_member(json, "endpoint"),
                     .input_file_id = text_member(json, "input_file_id"),
                     .completion_window = text_member(json, "completion_window"),
                     .output_expires_s = integer_member(json, "output_expires_s"),
                     .output_file_id = text_member(json, "output_file_id"),
                     .error_file_id = text_member(json, "error_file_id"),
                     .created_at = integer_member(json, "created_at"),
                     .expires_at = integer_member(json, "expires_at")};
  const std::string stored = text_member(json, "stored_status");
  bool known = false;
  for (const StatusRow& row : kStatuses) {
    if (row.stored == stored) {
      record.status = row.status;
      known = true;
    }
    if (row.stored == row.told)
      record.reached[static_cast<std::size_t>(row.status)] =
          integer_member(json, fmt::format("{}_at", row.told));
  }
  if (record.id.empty() || !known)
    return make_error(ErrorCode::corrupt_data, "no batch: id or status is missing");
  if (const chat::Json* metadata = json.given("metadata"))
    record.metadata = chat::dump_json(*metadata);
  if (const chat::Json* counts = json.given("request_counts")) {
    record.total = integer_member(*counts, "total");
    record.completed = integer_member(*counts, "completed");
    record.failed = integer_member(*counts, "failed");
  }
  const chat::Json* errors = json.given("errors");
  const chat::Json* faults = errors == nullptr ? nullptr : errors->given("data");
  if (faults != nullptr)
    for (const chat::Json& fault : faults->items)
      record.faults.push_back({.line = integer_member(fault, "line"),
                               .code = text_member(fault, "code"),
                               .param = text_member(fault, "param"),
                               .message = text_member(fault, "message")});
  return record;
}

}  // namespace koho::server
