// SPDX-License-Identifier: Apache-2.0
#include "server/file_routes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <span>
#include <sys/stat.h>

#include <fmt/format.h>

#include "api/body.h"
#include "api/field_table.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "server/batch_service.h"
#include "server/multipart.h"
#include "tokenizer/utf8.h"

namespace koho::server {
namespace {

using api::ApiError;
using api::ErrorStyle;
using chat::Json;

constexpr std::size_t kNameBytesMax = 255;
constexpr std::int64_t kExpiresSecondsMin = 3600;  // OpenAI's
constexpr std::int64_t kExpiresSecondsMax = 2'592'000;
constexpr std::int64_t kFilesListed = 10'000;
constexpr std::int64_t kBatchesListed = 20;
constexpr std::int64_t kBatchesListedMax = 100;
constexpr std::int64_t kWindowSecondsMax = 30 * 86'400;
constexpr std::string_view kCreated = "created_at";

Response json_response(std::string body) {
  Response response;
  response.body = std::move(body);
  return response;
}

Response refuse(ApiError error) {
  return error_response(ErrorStyle::openai, error);
}

Response refuse_field(std::string_view name, std::string message, std::string_view code = {}) {
  return refuse(api::wrong_field(name, std::move(message), code));
}

/// An error of the service, whose messages are for clients.
Response refuse(const Error& error) {
  const bool full = error.code == ErrorCode::resource_exhausted;
  ApiError refused{.status = error_code_info(error.code).http_status,
                   .code = full ? "rate_limit_exceeded" : "",
                   .param = error.field,
                   .message = error.message};
  if (error.code == ErrorCode::not_found) {
    refused.code = "not_found";
    if (refused.param.empty()) refused.param = "id";
  }
  if (error.code == ErrorCode::io_error) {
    log::error("/v1/files and /v1/batches: {}", error.message);  // with paths, not for clients
    refused = api::to_api_error(error);
  }
  return refuse(std::move(refused));
}

Response not_found(const char* kind, std::string_view id) {
  return refuse({.status = 404,
                 .code = "not_found",
                 .param = "id",
                 .message = fmt::format("there is no {} \"{:.100}\"", kind, id)});
}

/// A client's file name without its path, as UTF-8.
std::string clean_name(std::string_view name) {
  const std::size_t slash = name.find_last_of("/\\");
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  std::string clean;
  append_utf8_lossy(clean, name.substr(0, kNameBytesMax));
  return clean.empty() ? "file.jsonl" : clean;
}

/// Reads the query's `limit`; false: it is no number within 1..most.
bool read_limit(const RequestHead& head, std::int64_t most, std::int64_t& limit) {
  const std::string text = query_value(head, "limit");
  if (text.empty()) return true;
  const auto value = parse_integer<std::int64_t>(text);
  if (!value || *value < 1 || *value > most) return false;
  limit = *value;
  return true;
}

/// One page of a list, newest first or `ascending`, behind the id `after`: of what was deleted
/// meanwhile, too.
template <typename Item>
Response list_page(const std::vector<Item>& items,
                   bool ascending,
                   const RequestHead& head,
                   std::int64_t limit,
                   std::string (*json)(const Item& item)) {
  auto begin = items.begin();
  if (const std::string after = query_value(head, "after"); !after.empty()) {
    begin = std::ranges::find(items, after, &Item::id);
    const std::optional<std::int64_t> made = Core::time_of_id(after);
    if (begin != items.end()) {
      ++begin;
    } else if (made) {
      const std::pair<std::int64_t, std::string_view> place(*made, after);
      begin = std::ranges::partition_point(items, [&](const Item& item) {
        const std::pair<std::int64_t, std::string_view> at(item.created_at, item.id);
        return ascending ? at < place : at > place;
      });
    } else {
      return refuse_field("after", fmt::format("there is nothing with the id \"{:.100}\"", after));
    }
  }
  const auto end = begin + std::min<std::int64_t>(items.end() - begin, limit);
  std::string out = R"({"object":"list","data":[)";
  for (auto item = begin; item != end; ++item) {
    if (item != begin) out += ',';
    out += json(*item);
  }
  out += R"(],"first_id":)";
  out += begin != end ? json_string(begin->id) : "null";
  out += R"(,"last_id":)";
  out += begin != end ? json_string((end - 1)->id) : "null";
  out += end != items.end() ? R"(,"has_more":true})" : R"(,"has_more":false})";
  return json_response(std::move(out));
}

/// "24h" as seconds; 0: not within 1 s and 30 days.
std::int64_t window_seconds(std::string_view text) {
  if (text.size() < 2) return 0;
  const auto number = parse_integer<std::int64_t>(text.substr(0, text.size() - 1));
  if (!number || *number < 1 || *number > kWindowSecondsMax) return 0;
  const std::size_t unit = std::string_view("smhd").find(text.back());
  constexpr std::int64_t kSeconds[] = {1, 60, 3600, 86'400};
  if (unit == std::string_view::npos) return 0;
  const std::int64_t seconds = *number * kSeconds[unit];
  return seconds > kWindowSecondsMax ? 0 : seconds;
}

/// Reads {"anchor": "created_at", "seconds": …}; a refusal has the field's path.
api::Refusal read_expiry(std::string_view anchor,
                         std::optional<std::int64_t> seconds,
                         std::string_view field,
                         std::int64_t& after_s) {
  if (anchor != kCreated)
    return api::wrong_field(fmt::format("{}.anchor", field),
                            fmt::format("{}.anchor must be created_at", field));
  if (!seconds || *seconds < kExpiresSecondsMin || *seconds > kExpiresSecondsMax)
    return api::wrong_field(
        fmt::format("{}.seconds", field),
        fmt::format("{}.seconds must be in {}..{}", field, kExpiresSecondsMin, kExpiresSecondsMax));
  after_s = *seconds;
  return {};
}

/// OpenAI's limits: 16 pairs of strings, of 64 and 512 characters.
api::Refusal read_metadata(const Json& json, std::string& out) {
  bool good = json.is_object() && json.items.size() <= 16;
  const auto characters = [](std::string_view text) {
    return std::ranges::count_if(text, begins_character);
  };
  for (std::size_t i = 0; good && i < json.items.size(); ++i)
    good = characters(json.keys[i]) <= 64 && json.items[i].is_string() &&
           characters(json.items[i].text) <= 512;
  if (!good)
    return api::wrong_field("metadata",
                            "metadata must be an object of at most 16 strings of at most 512 "
                            "characters, with names of at most 64");
  out = chat::dump_json(json);
  return {};
}

bool reads_of_batches(std::string_view name) {
  constexpr std::string_view kFields[] = {"input_file_id", "endpoint", "completion_window",
                                          "metadata", "output_expires_after"};
  return std::ranges::find(kFields, name) != std::end(kFields);
}

api::Refusal read_order(const Json& body, BatchOrder& order) {
  for (const auto& [name, target] :
       {std::pair{"input_file_id", &order.input_file_id}, std::pair{"endpoint", &order.endpoint},
        std::pair{"completion_window", &order.completion_window}}) {
    const Json* member = body.given(name);
    if (member == nullptr || !member->is_string())
      return api::wrong_field(
          name, fmt::format("{} must be a string, found {}", name,
                            member == nullptr ? "nothing" : chat::kind_name(member->kind)));
    *target = member->text;
  }
  if (api::find_batch_endpoint(order.endpoint) == nullptr)
    return api::wrong_field("endpoint",
                            fmt::format("endpoint must be one of {}", api::batch_paths()));
  order.window_s = window_seconds(order.completion_window);
  if (order.window_s == 0)
    return api::wrong_field("completion_window",
                            "completion_window must be a time such as 24h, at most 30d");
  if (const Json* metadata = body.given("metadata"))
    if (api::Refusal refused = read_metadata(*metadata, order.metadata)) return refused;
  if (const Json* expires = body.given("output_expires_after")) {
    const Json* anchor = expires->given("anchor");
    const Json* seconds = expires->given("seconds");
    return read_expiry(anchor != nullptr ? anchor->text : "",
                       seconds != nullptr ? api::whole_number(*seconds) : std::nullopt,
                       "output_expires_after", order.output_expires_s);
  }
  return {};
}

Response answer_upload(Core& core, BatchService& service, const RoutedRequest& call) {
  const Result<std::vector<FormPart>> form = read_form(call.head.field("content-type"), call.body);
  if (!form.ok()) return refuse_field("", form.error().message, "bad_request");
  const auto part = [&](std::string_view name) -> const FormPart* {
    for (const FormPart& one : *form)
      if (one.name == name) return &one;
    return nullptr;
  };
  const FormPart* purpose = part("purpose");
  if (purpose == nullptr || purpose->content != "batch")
    return refuse_field("purpose", "purpose must be batch: files are the input of batches here");
  const FormPart* content = part("file");
  if (content == nullptr || content->filename.empty())
    return refuse_field("file", "file is missing: the part must have a file name");
  const std::int64_t now_s = Core::unix_seconds();
  StoredFile file{.id = "file-" + core.make_dated_id(now_s),
                  .owner = owner_of(call.key),
                  .filename = clean_name(content->filename),
                  .purpose = "batch",
                  .bytes = static_cast<std::int64_t>(content->content.size()),
                  .created_at = now_s};
  const FormPart* anchor = part("expires_after[anchor]");
  const FormPart* seconds = part("expires_after[seconds]");
  if (anchor != nullptr || seconds != nullptr) {
    std::int64_t after_s = 0;
    if (api::Refusal refused = read_expiry(
            anchor != nullptr ? anchor->content : "",
            seconds != nullptr ? parse_integer<std::int64_t>(seconds->content) : std::nullopt,
            "expires_after", after_s))
      return refuse(*std::move(refused));
    file.expires_at = file.created_at + after_s;
  }
  if (const Status kept = service.files().add(file, content->content, share_of(core, call.key));
      !kept.ok())
    return refuse(kept.error());
  return json_response(file_json(file));
}

Response answer_files(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  std::int64_t limit = kFilesListed;
  if (!read_limit(call.head, kFilesListed, limit))
    return refuse_field("limit", fmt::format("limit must be in 1..{}", kFilesListed));
  const std::string order = query_value(call.head, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return refuse_field("order", "order must be asc or desc");
  std::vector<StoredFile> files = service.files().list(owner_of(call.key));
  const bool ascending = order == "asc";
  if (ascending) std::ranges::reverse(files);
  if (const std::string purpose = query_value(call.head, "purpose"); !purpose.empty())
    std::erase_if(files, [&](const StoredFile& file) { return file.purpose != purpose; });
  return list_page(files, ascending, call.head, limit, file_json);
}

Response answer_file(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  const std::optional<StoredFile> file = service.files().find(owner_of(call.key), call.rest);
  return file ? json_response(file_json(*file)) : not_found("file", call.rest);
}

Response answer_file_content(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  const std::optional<StoredFile> file = service.files().find(owner_of(call.key), call.rest);
  if (!file) return not_found("file", call.rest);
  const auto body = std::make_shared<FileBody>();
  const std::filesystem::path path = service.files().content_path(file->id);
  body->file = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  const bool opened = body->file.is_open() && fstat(body->file.get(), &status) == 0;
  if (!opened || !S_ISREG(status.st_mode)) {
    const Error error = make_error(ErrorCode::io_error, "{} could not be opened: {}", path.string(),
                                   opened ? "not a regular file" : std::strerror(errno));
    const bool deleted = !service.files().find(owner_of(call.key), call.rest);  // in this moment
    return deleted ? not_found("file", call.rest) : refuse(error);
  }
  body->left = status.st_size;
  Response response{.content_type = "application/octet-stream"};
  response.file = body;
  return response;
}

Response answer_delete_file(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  const Status removed = service.remove_file(owner_of(call.key), call.rest);
  if (!removed.ok()) return refuse(removed.error());
  std::string out = R"({"id":)";
  append_json_string(out, call.rest);
  return json_response(out + R"(,"object":"file","deleted":true})");
}

Response answer_create_batch(Core& core, BatchService& service, const RoutedRequest& call) {
  Json body;
  if (api::Refusal refused = api::parse_body(call.body, reads_of_batches, body))
    return refuse(*std::move(refused));
  BatchOrder order{.owner = owner_of(call.key)};
  if (api::Refusal refused = read_order(body, order)) return refuse(*std::move(refused));
  if (const Status room = service.files().check_share(order.owner, share_of(core, call.key));
      !room.ok())
    return refuse(room.error());
  const Result<BatchRecord> made = service.create(order);
  return made.ok() ? json_response(batch_json(*made)) : refuse(made.error());
}

Response answer_batches(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  std::int64_t limit = kBatchesListed;
  if (!read_limit(call.head, kBatchesListedMax, limit))
    return refuse_field("limit", fmt::format("limit must be in 1..{}", kBatchesListedMax));
  return list_page(service.records().list(owner_of(call.key)), false, call.head, limit, batch_json);
}

Response answer_batch(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  const std::optional<BatchRecord> record = service.records().find(owner_of(call.key), call.rest);
  return record ? json_response(batch_json(*record)) : not_found("batch", call.rest);
}

Response answer_cancel_batch(Core& /*core*/, BatchService& service, const RoutedRequest& call) {
  const Result<BatchRecord> record = service.cancel(owner_of(call.key), call.rest);
  return record.ok() ? json_response(batch_json(*record)) : refuse(record.error());
}

using Handler = Response (*)(Core& core, BatchService& service, const RoutedRequest& call);

/// kHandler's answer, or a refusal of a server without a directory for files.
template <Handler kHandler>
Response with_service(Core& core, const RoutedRequest& call) {
  if (BatchService* service = core.batches(); service != nullptr)
    return kHandler(core, *service, call);
  return refuse({.status = 404,
                 .code = "not_found",
                 .param = {},
                 .message = "this server keeps no files: start it with --files-dir DIRECTORY"});
}

template <Handler kHandler>
Route file_route(std::string_view method, std::string_view path, std::string_view about) {
  Route route{.method = method, .path = path, .answer = with_service<kHandler>, .about = about};
  route.waits_for_disk = true;
  return route;
}

}  // namespace

std::vector<Route> file_routes() {
  std::vector<Route> table{
      file_route<answer_upload>("POST", kFilesPath, "keeps a file, the input of a batch"),
      file_route<answer_files>("GET", kFilesPath, "the files of this key"),
      file_route<answer_file_content>("GET", "/v1/files/*/content", "its content"),
      file_route<answer_file>("GET", "/v1/files/*", "one of them"),
      file_route<answer_delete_file>("DELETE", "/v1/files/*", "deletes it"),
      file_route<answer_create_batch>("POST", "/v1/batches", "begins a batch"),
      file_route<answer_batches>("GET", "/v1/batches", "the batches of this key"),
      file_route<answer_batch>("GET", "/v1/batches/*", "one of them"),
      file_route<answer_cancel_batch>("POST", "/v1/batches/*/cancel", "ends it")};
  table.front().takes_form = true;
  return table;
}

}  // namespace koho::server
