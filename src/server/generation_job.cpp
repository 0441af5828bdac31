// SPDX-License-Identifier: Apache-2.0
#include "server/generation_job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "api/body.h"
#include "base/text.h"
#include "chat/json.h"
#include "grammar/forced_tokens.h"

namespace koho::server {

using api::ApiError;

namespace {

/// What a choice without max_tokens takes of its key's tokens a minute when it begins.
constexpr std::int64_t kAnswerTokens = 256;

Error queue_is_full() {
  return make_error(ErrorCode::resource_exhausted,
                    "the queue is full for this client, try again later");
}

}  // namespace

GenerationJob::GenerationJob(Core& core, Setup setup)
    : core_(core),
      live_(core.counters().requests_live),
      setup_(std::move(setup)),
      received_us_(core.clock().now_us()) {}

GenerationJob::~GenerationJob() {
  end_reading({});
  if (!body_name_.empty()) core_.remove_job({.id = body_name_, .owner = owner()});
}

void GenerationJob::start(std::string body) {
  name_ =
      core_.add_job(setup_.request_id.empty() ? setup_.id : setup_.request_id, shared_from_this());
  reader_ = core_.begin_reading();
  if (setup_.key != nullptr) {
    use_ = std::make_shared<KeyUse>(setup_.key);
    refused_ = use_->begin(core_.clock().now_us());
    key_is_at_limit_ = refused_.has_value();
  }
  if (refused_) {
    end_reading({});
    end_preparing();
    return;
  }
  if (body.size() <= core_.settings().inline_body_bytes) {
    prepare(body);
    return;
  }
  const bool taken = core_.pool().submit(
      client(), [self = shared_from_this(), text = std::make_shared<std::string>(std::move(body))] {
        self->prepare(*text);
      });
  if (taken) return;
  refused_ = ApiError{
      .status = 503,
      .code = "service_unavailable",
      .param = {},
      .message = "the server is overloaded: too many large requests wait to be parsed; retry later",
      .retry_after_s = 1};
  end_preparing();
}

/// Tells the core that the body is read; `name` is the body's request_id, or "".
void GenerationJob::end_reading(const std::string& name) {
  if (!reader_) return;
  if (setup_.request_id.empty() && !name.empty())
    body_name_ = core_.add_job(name, shared_from_this());
  if (core_.end_reading(*reader_, {.id = name, .owner = owner()})) aborted_.store(true);
  reader_.reset();
}

void GenerationJob::prepare(std::string& body) {
  if (!is_cancelled()) refused_ = read(body);
  end_reading({});
  if (refused_ || !request_.constraint || is_cancelled() || find_grammar()) {
    end_preparing();
    return;
  }
  if (core_.grammar_pool().submit(client(), [self = shared_from_this()] {
        // It may have waited: the grammars of those that left would hold up the client's next ones.
        if (!self->is_cancelled()) self->refused_ = self->compile_grammar();
        self->end_preparing();
      }))
    return;
  refused_ = ApiError{
      .status = 503,
      .code = "service_unavailable",
      .param = {},
      .message = "the server is overloaded: too many grammars wait to be compiled; retry later",
      .retry_after_s = 1};
  end_preparing();
}

void GenerationJob::end_preparing() {
  prepared_.store(true, std::memory_order_release);
  setup_.wake();
}

/// Whether the grammar was there: all prompts have it.
bool GenerationJob::find_grammar() {
  if (!setup_.serving->find_grammar) return false;
  const auto grammar = setup_.serving->find_grammar(*request_.constraint);
  for (Request& one : request_.requests) one.grammar = grammar;
  return grammar != nullptr;
}

std::optional<ApiError> GenerationJob::compile_grammar() {
  if (!setup_.serving->compile_grammar)
    return api::to_api_error(make_error(ErrorCode::unsupported,
                                        "structured outputs need a model with a tokenizer.json"));
  const auto grammar = setup_.serving->compile_grammar(*request_.constraint);
  if (grammar.ok()) {
    for (Request& one : request_.requests) one.grammar = *grammar;
    return {};
  }
  ApiError error = api::to_api_error(grammar.error());
  // The fault of a tool's schema is not tool_choice's.
  const Constraint::Kind kind = request_.constraint->kind;
  const bool of_tools = kind == Constraint::Kind::union_of || kind == Constraint::Kind::tool_calls;
  error.param = of_tools && !grammar.error().field.empty() ? grammar.error().field
                                                           : request_.constraint_field;
  // Anthropic's errors have no member for the field, so the message names it.
  if (api::error_style(setup_.endpoint->path) == api::ErrorStyle::anthropic)
    error.message = fmt::format("{}: {}", error.param, error.message);
  if (is_grammar_error(grammar.error())) error.code = error_reason_name(grammar.error().reason);
  return error;
}

/// Reads the body, and frees its memory as soon as its tree is made.
std::optional<ApiError> GenerationJob::read(std::string& body) {
  chat::Json json;
  if (api::Refusal refused = api::parse_body(body, setup_.endpoint->reads, json)) return refused;
  free_text(body);
  if (api::Refusal refused = api::read_request_id(json, request_.request_id)) return refused;
  end_reading(request_.request_id);
  if (aborted_.load()) return {};
  const api::GenerationEndpoint& endpoint = *setup_.endpoint;
  const api::Model& model = setup_.serving->model;
  request_.call_id_prefix = "call_" + setup_.id.substr(0, 16) + "_";
  if (api::Refusal refused = endpoint.read(json, model, request_)) return refused;
  if (setup_.in_batch && request_.stream)
    return api::wrong_field("stream", "a request of a batch cannot be a stream");
  request_.base.client = setup_.client;
  if (setup_.key != nullptr) setup_.key->apply(request_);
  request_.base.priority = std::max(request_.base.priority, setup_.priority);
  json = {};
  core_.note_unknown_fields(request_.unknown_fields);
  api::Refusal refused = api::encode(request_, model, endpoint.prompt_field);
  if (refused && endpoint.reword != nullptr)
    refused = endpoint.reword(std::move(*refused), request_, model);
  if (request_.conversation) request_.conversation->messages = {};  // the prompt is made of them
  return refused;
}

void GenerationJob::take_tokens() {
  if (use_ == nullptr) return;
  std::int64_t prompt = 0;
  std::int64_t answer = 0;
  for (const Request& one : request_.requests) {
    prompt += static_cast<std::int64_t>(one.prompt.size());
    const std::int64_t most = one.max_tokens;
    answer += one.choices * (request_.tokens_max ? most : std::min(most, kAnswerTokens));
  }
  refused_ = use_->take_tokens(prompt, answer, core_.clock().now_us());
  key_is_at_limit_ = refused_.has_value();
}

std::vector<std::pair<std::string_view, std::string>> GenerationJob::limit_fields() {
  if (setup_.key == nullptr) return {};
  if (stage_ == Stage::over) use_.reset();  // gives back what it did not use
  return setup_.key->fields(core_.clock().now_us());
}

bool GenerationJob::take_places(Submitted& made, std::int32_t sequences) {
  return made.request.take(core_.engine_requests(), client(), 1) &&
         made.sequences.take(core_.engine_sequences(), client(), sequences);
}

void GenerationJob::take_all_places() {
  streams_.resize(request_.requests.size());
  for (std::size_t i = 0; i < streams_.size() && !refused_; ++i)
    if (!take_places(streams_[i], request_.requests[i].choices))
      refused_ = api::to_api_error(queue_is_full());
}

Status GenerationJob::submit_one(Request request, Submitted& made) {
  if (request.deadline_us > 0) {
    const std::int64_t passed_us = core_.clock().now_us() - received_us_;
    // The engine ends one without anything left, and tells why.
    request.deadline_us = std::max<std::int64_t>(request.deadline_us - passed_us, 1);
  }
  KOHO_TRY_ASSIGN(made.stream, setup_.serving->engine.submit(std::move(request), setup_.wake));
  return {};
}

void GenerationJob::make_answer() {
  const api::Model& model = setup_.serving->model;
  answer_.emplace(model, request_, setup_.endpoint->respond(request_, model));
}

void GenerationJob::submit() {
  stage_ = Stage::running;
  make_answer();
  std::size_t bytes = request_.kept_bytes();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Request& one = request_.requests[i];
    const auto prompt_tokens = static_cast<std::int64_t>(one.prompt.size());
    bytes += one.prompt.size() * sizeof(Token);
    if (const Status submitted = submit_one(std::move(one), streams_[i]); !submitted.ok()) {
      refused_ = api::to_api_error(submitted.error());
      break;
    }
    if (use_ != nullptr) use_->use_prompt(prompt_tokens);
  }
  streams_left_ = streams_.size();
  tokens_read_.resize(streams_.size());
  setup_.share.hold(bytes);
  request_.free_answered();
}

GenerationJob::State GenerationJob::poll(std::string& out, std::size_t bytes_max) {
  if (stage_ == Stage::preparing) {
    if (!prepared_.load(std::memory_order_acquire)) return State::waiting;
    stage_ = Stage::prepared;
    if (!body_name_.empty()) {
      core_.remove_job({.id = name_, .owner = owner()});
      name_ = std::exchange(body_name_, {});
    }
  }
  if (stage_ == Stage::prepared) {
    if (!refused_ && !aborted_.load() && core_.phase() == Phase::draining)
      refused_ = api::to_api_error(make_error(ErrorCode::unavailable, "draining"));
    if (!refused_ && !aborted_.load()) take_tokens();
    if (!refused_ && !aborted_.load()) take_all_places();
    if (!refused_ && !aborted_.load()) {
      stream_ = request_.stream;
      if (request_.wants_prompt_logprobs()) {
        begin_prompt_logprobs();
      } else {
        submit();
      }
    }
  }
  if (stage_ == Stage::scoring && !refused_ && !aborted_.load()) {
    compute_prompt_logprobs();
    if (stage_ == Stage::scoring && !refused_) return State::waiting;
  }
  std::string& target = stream_ ? out : body_;
  const std::size_t before = target.size();
  if (stage_ != Stage::over) {
    if (aborted_.load() && !refused_)
      refused_ = api::to_api_error(make_error(ErrorCode::cancelled, "aborted"));
    if (refused_) {
      cancel_streams();
      finish(*refused_, target);
    } else {
      take_events(target, stream_ ? bytes_max : ~std::size_t{0});
    }
  }
  const bool over = stage_ == Stage::over;
  if (stream_ && told_)
    return over ? State::streamed : (target.size() > before ? State::streaming : State::waiting);
  return over ? State::answered : State::waiting;
}

void GenerationJob::take_events(std::string& out, std::size_t bytes_max) {
  const std::size_t before = out.size();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].stream) continue;
    while (out.size() - before < bytes_max) {
      const OutputStream::Read read = streams_[i].stream->poll(event_);
      if (read == OutputStream::Read::nothing) break;
      if (read == OutputStream::Read::event) {
        if (event_.token >= 0) {
          const std::int64_t now_us = core_.clock().now_us();
          progress_.last_us = now_us;
          if (progress_.tokens == 0) progress_.first_us = now_us;
          ++progress_.tokens;
          ++tokens_read_[i];
          if (use_ != nullptr) use_->add_generated(1, now_us);
        }
        begin(out);
        answer_->add(i, event_, out);
        refused_ = hold_answer();
        if (!refused_) continue;
        cancel_streams();
        finish(*refused_, out);
        return;
      }
      const std::shared_ptr<OutputStream> ended = std::exchange(streams_[i], {}).stream;
      Summary summary = ended->summary();
      if (!cached_tokens_.empty()) summary.usage.cached_tokens = cached_tokens_[i];
      if (use_ != nullptr) count_unread(*use_, summary, tokens_read_[i], core_.clock().now_us());
      if (summary.ending != Ending::completed) {
        const Error error = summary.ending == Ending::failed
                                ? summary.error
                                : make_error(ErrorCode::cancelled, "aborted");
        cancel_streams();
        finish(api::to_api_error(error), out);
        return;
      }
      begin(out);
      answer_->end(i, summary, out);
      if (--streams_left_ > 0) break;
      stage_ = Stage::over;
      if (!stream_) response_.body = std::move(out);
      constexpr std::string_view kFinish[] = {"none", "stop", "length", "tool_calls"};
      report(kFinish[static_cast<std::size_t>(answer_->finish())], 200);
      return;
    }
  }
}

/// Counts what the event adds to an answer that is sent whole, or refuses to go on.
std::optional<ApiError> GenerationJob::hold_answer() {
  constexpr std::size_t kTokenBytes = 8;  // its id and its part of the text
  constexpr std::size_t kLogprobBytes = 64;
  constexpr std::size_t kPieceBytes = 64U << 10U;
  constexpr std::size_t kAnswerBytesMax = std::size_t{256} << 20U;
  if (stream_) return {};
  answer_bytes_ += event_.text.size() + kTokenBytes + event_.top.size() * kLogprobBytes;
  if (answer_bytes_ < held_answer_.bytes() + kPieceBytes) return {};
  if (held_answer_.bytes() == 0) held_answer_ = BodyShare(core_.unread_answers(), client());
  held_answer_.hold(answer_bytes_);
  const bool full = held_answer_.is_used_up();
  // Alone it would not fit later either.
  if (answer_bytes_ > kAnswerBytesMax ||
      (full && core_.unread_answers().bytes() == held_answer_.bytes()))
    return ApiError{.status = 400,
                    .code = "answer_too_large",
                    .param = {},
                    .message =
                        "the answer is too large to be kept until it is complete: stream "
                        "it, or ask for fewer choices, tokens or log probabilities"};
  if (!full) return {};
  return ApiError{.status = 429,
                  .code = "rate_limit_exceeded",
                  .param = {},
                  .message =
                      "this client's answers have filled the memory for them: stream them, "
                      "or send fewer requests at once",
                  .retry_after_s = 1};
}

void GenerationJob::begin(std::string& out) {
  if (begun_) return;
  begun_ = told_ = true;
  answer_->begin({.id = name_,
                  .created = Core::unix_seconds(),
                  .prompt_tokens = request_.prompt_tokens.value_or(0)},
                 out);
}

void GenerationJob::finish(const ApiError& error, std::string& out) {
  stage_ = Stage::over;
  scoring_.reset();
  if (use_ != nullptr) use_->give_back_prompts();
  ApiError shown = error;
  if (shown.code == "service_unavailable" && core_.phase() == Phase::draining) {
    shown.code = "server_shutting_down";
    shown.message = "the server is shutting down; retry on another server";
  }
  const bool full = shown.code == "rate_limit_exceeded" && !key_is_at_limit_;
  if (full && core_.settings().overload_status == 503) shown.status = 503;
  if (full && api::error_style(setup_.endpoint->path) == api::ErrorStyle::anthropic)
    shown.status = 529;
  if (full) ++core_.counters().rejected_full;
  if (shown.code == "timeout") ++core_.counters().deadlines_passed;
  const bool told = stream_ && told_;
  if (told) {
    if (!answer_) make_answer();
    answer_->fail(shown, out);
  } else {
    response_ = error_response(api::error_style(setup_.endpoint->path), shown);
  }
  report(shown.code.empty() ? std::string_view("error") : std::string_view(shown.code),
         told ? 200 : shown.status, &shown);
}

void GenerationJob::ping(std::string& out) {
  if ((stage_ != Stage::running && stage_ != Stage::scoring) || !stream_) return;
  if (stage_ == Stage::scoring) {  // the answer begins with the scores
    told_ = true;
    out += ": ping\n\n";
  } else {
    begin(out);
    answer_->ping(out);
  }
  ++core_.counters().pings;
}

void GenerationJob::cancel_streams() {
  for (ScoreChunk& chunk : active_chunks_) cancel(std::move(chunk.submitted), nullptr, 0);
  active_chunks_.clear();
  for (std::size_t i = 0; i < streams_.size(); ++i)
    cancel(std::exchange(streams_[i], {}), use_, i < tokens_read_.size() ? tokens_read_[i] : 0);
}

void GenerationJob::cancel(Submitted submitted, std::shared_ptr<KeyUse> use, std::int64_t read) {
  const std::shared_ptr<OutputStream> stream = std::move(submitted.stream);
  if (stream == nullptr) return;
  // The engine gives the places back when it ends the stream, so they are taken until then.
  auto places = std::make_shared<Submitted>(std::move(submitted));
  stream->leave([places = std::move(places), use = std::move(use), read,
                 now_us = core_.clock().now_us()](const Summary& summary) {
    if (use != nullptr) count_unread(*use, summary, read, now_us);
  });
  setup_.serving->engine.cancel(stream);
}

void GenerationJob::count_unread(KeyUse& use,
                                 const Summary& summary,
                                 std::int64_t read,
                                 std::int64_t now_us) {
  use.add_generated(summary.usage.completion_tokens - read, now_us);
}

void GenerationJob::forgive() {
  if (use_ != nullptr) use_->forgive();
}

void GenerationJob::on_disconnect() {
  abandoned_.store(true);
  if (stage_ == Stage::over) return;
  cancel_streams();
  stage_ = Stage::over;
  scoring_.reset();
  report("abort", stream_ && told_ ? 200 : 499);
}

void GenerationJob::abort_with_error() {
  aborted_.store(true);
  setup_.wake();
}

}  // namespace koho::server
