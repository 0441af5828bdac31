// SPDX-License-Identifier: Apache-2.0
#include "server/generation_job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "api/body.h"
#include "base/log.h"
#include "chat/json.h"
#include "grammar/forced_tokens.h"

namespace koho::server {

using api::ApiError;

namespace {

/// Tokens that came at once, or almost, have no pace.
constexpr std::int64_t kPaceUsMin = 1000;

/// What a client sent, at most 200 bytes of it, as a line of the log tells it.
std::string quoted_part(std::string_view text) {
  constexpr std::size_t kBytesMax = 200;
  std::size_t bytes = std::min(text.size(), kBytesMax);
  while (bytes > 0 && bytes < text.size() && (static_cast<unsigned char>(text[bytes]) >> 6U) == 2U)
    --bytes;  // whole characters
  return log::quoted(text.substr(0, bytes));
}

}  // namespace

GenerationJob::GenerationJob(Core& core, Setup setup)
    : core_(core), setup_(std::move(setup)), received_us_(core.clock().now_us()) {
  ++core_.counters().requests_live;
}

GenerationJob::~GenerationJob() {
  end_reading({});
  if (!body_name_.empty()) core_.remove_job(body_name_);
  --core_.counters().requests_live;
}

void GenerationJob::start(std::string body) {
  name_ =
      core_.add_job(setup_.request_id.empty() ? setup_.id : setup_.request_id, shared_from_this());
  reader_ = core_.begin_reading();
  if (body.size() <= core_.settings().inline_body_bytes) {
    prepare(body);
    // A grammar takes longer than reading: its part waits for the pool.
    return;
  }
  const bool taken = core_.pool().submit(
      [self = shared_from_this(), text = std::move(body)] { self->prepare(text); });
  if (taken) return;
  refused_ = ApiError{.status = 503,
                      .code = "service_unavailable",
                      .param = {},
                      .message = "too many large requests wait to be read; try again",
                      .retry_after_s = 1};
  prepared_.store(true, std::memory_order_release);
  setup_.wake();
}

/// The body is read; `name` is what it calls itself, or "".
void GenerationJob::end_reading(const std::string& name) {
  if (!reader_) return;
  if (setup_.request_id.empty() && !name.empty())
    body_name_ = core_.add_job(name, shared_from_this());
  if (core_.end_reading(*reader_, name)) aborted_.store(true);
  reader_.reset();
}

void GenerationJob::prepare(const std::string& body) {
  const auto given_up = [this] { return abandoned_.load() || aborted_.load(); };
  if (!given_up()) refused_ = read(body);
  end_reading({});
  const bool compiles = !refused_ && request_.constraint.has_value() && !given_up();
  const auto done = [self = shared_from_this()] {
    self->prepared_.store(true, std::memory_order_release);
    self->setup_.wake();
  };
  if (!compiles) {
    done();
    return;
  }
  const auto compile = [self = shared_from_this(), done] {
    GenerationJob& job = *self;
    for (Request& one : job.request_.requests) {
      const Status status =
          job.setup_.serving->constrain
              ? job.setup_.serving->constrain(*job.request_.constraint, one)
              : Status(make_error(ErrorCode::unsupported, "this build compiles no grammars"));
      if (status.ok()) continue;
      ApiError error = api::to_api_error(status.error());
      const bool of_union = job.request_.constraint->kind == Constraint::Kind::union_of;
      error.param = of_union && !status.error().field.empty() ? status.error().field
                                                              : job.request_.constraint_field;
      // Anthropic's form has no place for the field but the message.
      if (api::error_style(job.setup_.endpoint->path) == api::ErrorStyle::anthropic)
        error.message = fmt::format("{}: {}", error.param, error.message);
      if (is_grammar_error(status.error())) error.code = error_reason_name(status.error().reason);
      job.refused_ = std::move(error);
      break;
    }
    done();
  };
  if (core_.pool().submit(compile)) return;
  refused_ = ApiError{.status = 503,
                      .code = "service_unavailable",
                      .param = {},
                      .message = "too many grammars wait to be compiled; try again",
                      .retry_after_s = 1};
  done();
}

std::optional<ApiError> GenerationJob::read(const std::string& body) {
  chat::Json json;
  if (api::Refusal refused = api::parse_body(body, json)) return refused;
  if (api::Refusal refused = api::read_request_id(json, request_.request_id)) return refused;
  end_reading(request_.request_id);
  if (aborted_.load()) return {};
  const api::GenerationEndpoint& endpoint = *setup_.endpoint;
  const api::Model& model = setup_.serving->model;
  request_.call_id_prefix = "call_" + setup_.id.substr(0, 16) + "_";
  if (api::Refusal refused = endpoint.read(json, model, request_)) return refused;
  core_.note_unknown_fields(request_.unknown_fields);
  api::Refusal refused = api::encode(request_, model, endpoint.prompt_field);
  if (refused && endpoint.reword != nullptr)
    refused = endpoint.reword(std::move(*refused), request_, model);
  return refused;
}

/// The engine computes logits where it samples only. So a prompt is cut into runs of a page's
/// tokens, and each is the answer, with no choice left, to what stands before it. The last run goes
/// ahead: with its prompt all pages are computed and kept, where the others then find them.
void GenerationJob::begin_prompt_logprobs() {
  constexpr std::size_t kScoredTokensMax = 16'384;
  const api::Model& model = setup_.serving->model;
  const std::int32_t vocabulary = model.tokenizer == nullptr
                                      ? model.limits.vocabulary
                                      : static_cast<std::int32_t>(model.tokenizer->vocab_size());
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < request_.requests.size(); ++i) {
    const std::vector<Token>& prompt = request_.requests[i].prompt;
    tokens += prompt.size();
    request_.prompt_logprobs.emplace_back(prompt.size() - 1);
    if (prompt.size() > 1)
      pending_chunks_.push_back(run_of(i, (prompt.size() - 2) / kScoreChunkTokens));
    for (const Token token : prompt)
      if (token >= vocabulary)
        refused_ = api::wrong_field(
            "echo",
            fmt::format("token {} is none that could be scored: the tokenizer lacks it", token));
  }
  if (tokens > kScoredTokensMax)
    refused_ = api::wrong_field(
        "echo",
        fmt::format("echo with logprobs scores at most {} prompt tokens a request, found {}",
                    kScoredTokensMax, tokens));
  if (!refused_) stage_ = Stage::scoring;
}

/// ScoreChunk `number` of a prompt: its first begins behind the first token, which nothing foretells, each
/// further one behind a token of the page that its prompt ends in.
GenerationJob::ScoreChunk GenerationJob::run_of(std::size_t prompt, std::size_t number) const {
  const std::size_t length = request_.requests[prompt].prompt.size();
  const std::size_t begin = number * kScoreChunkTokens + 1;
  const std::size_t end = std::min(begin + kScoreChunkTokens, length);
  return {.prompt = prompt, .position = begin, .end = end, .leads = end == length && number > 0};
}

void GenerationJob::read_prompt_logprobs(ScoreChunk& run) {
  while (true) {
    const OutputStream::Read read = run.stream->poll(event_);
    if (read == OutputStream::Read::nothing) return;
    if (read == OutputStream::Read::event) {
      api::PromptLogprob& logprob = request_.prompt_logprobs[run.prompt][run.position++ - 1];
      logprob.logprob = event_.logprob;
      logprob.top = event_.top;
      continue;
    }
    const Summary& summary = run.stream->summary();
    if (summary.ending == Ending::failed) refused_ = api::to_api_error(summary.error);
    run.stream.reset();
    return;
  }
}

void GenerationJob::compute_prompt_logprobs() {
  constexpr std::size_t kAtOnce = 32;
  for (std::size_t i = 0; i < active_chunks_.size(); ++i) {
    const std::size_t before = active_chunks_[i].position;
    read_prompt_logprobs(active_chunks_[i]);
    if (!active_chunks_[i].leads || active_chunks_[i].position == before) continue;
    active_chunks_[i].leads = false;
    for (std::size_t number = (before - 1) / kScoreChunkTokens; number > 0; --number)
      pending_chunks_.push_front(run_of(active_chunks_[i].prompt, number - 1));
  }
  std::erase_if(active_chunks_, [](const ScoreChunk& run) { return run.stream == nullptr; });
  while (!refused_ && active_chunks_.size() < kAtOnce && !pending_chunks_.empty()) {
    ScoreChunk& run = pending_chunks_.front();
    const Request& whole = request_.requests[run.prompt];
    const auto at = [&whole](std::size_t position) {
      return whole.prompt.begin() + static_cast<std::ptrdiff_t>(position);
    };
    Request one;
    one.prompt.assign(at(0), at(run.position));
    one.grammar = forced_tokens({at(run.position), at(run.end)});
    one.sampling.temperature = 0.0;
    one.sampling.logprobs = *request_.output.logprobs;
    one.max_tokens = static_cast<std::int32_t>(run.end - run.position);
    one.salt = whole.salt;
    one.priority = whole.priority;
    one.deadline_us = whole.deadline_us;
    Result<std::shared_ptr<OutputStream>> stream =
        setup_.serving->engine.submit(std::move(one), setup_.wake);
    if (!stream.ok()) {
      // A full queue has room again when some of ours have ended.
      if (stream.error().code == ErrorCode::resource_exhausted && !active_chunks_.empty()) break;
      refused_ = api::to_api_error(stream.error());
      break;
    }
    run.stream = std::move(*stream);
    active_chunks_.push_back(std::move(run));
    pending_chunks_.pop_front();
  }
  if (refused_ || !active_chunks_.empty() || !pending_chunks_.empty()) return;
  submit();
}

void GenerationJob::submit() {
  const api::Model& model = setup_.serving->model;
  stage_ = Stage::running;
  stream_ = request_.stream;
  answer_.emplace(model, request_, setup_.endpoint->respond(request_, model));
  for (Request& one : request_.requests) {
    Result<std::shared_ptr<OutputStream>> stream =
        setup_.serving->engine.submit(std::move(one), setup_.wake);
    if (!stream.ok()) {
      refused_ = api::to_api_error(stream.error());
      cancel_streams();
      break;
    }
    streams_.push_back(std::move(*stream));
  }
  streams_left_ = streams_.size();
  // Prompts are the largest part of a request.
  request_.requests.clear();
  request_.requests.shrink_to_fit();
  request_.prompts.clear();
  request_.conversation.reset();
}

GenerationJob::State GenerationJob::poll(std::string& out, std::size_t bytes_max) {
  if (stage_ == Stage::preparing) {
    if (!prepared_.load(std::memory_order_acquire)) return State::waiting;
    stage_ = Stage::prepared;
    if (!body_name_.empty()) {
      core_.remove_job(name_);
      name_ = std::exchange(body_name_, {});
    }
  }
  if (stage_ == Stage::prepared) {
    if (!refused_ && !aborted_.load() && core_.phase() == Phase::draining)
      refused_ = api::to_api_error(make_error(ErrorCode::unavailable, "draining"));
    if (!refused_ && !aborted_.load()) {
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
  if (stream_ && begun_)
    return over ? State::streamed : (target.size() > before ? State::streaming : State::waiting);
  return over ? State::answered : State::waiting;
}

void GenerationJob::take_events(std::string& out, std::size_t bytes_max) {
  const std::size_t before = out.size();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i]) continue;
    while (out.size() - before < bytes_max) {
      const OutputStream::Read read = streams_[i]->poll(event_);
      if (read == OutputStream::Read::nothing) break;
      if (read == OutputStream::Read::event) {
        if (event_.token >= 0) {
          progress_.last_us = core_.clock().now_us();
          if (++progress_.tokens == 1) progress_.first_us = progress_.last_us;
        }
        begin(out);
        answer_->add(i, event_, out);
        continue;
      }
      const std::shared_ptr<OutputStream> ended = std::exchange(streams_[i], nullptr);
      const Summary& summary = ended->summary();
      if (summary.ending != Ending::completed) {
        const Error error = summary.ending == Ending::failed
                                ? summary.error
                                : make_error(ErrorCode::cancelled, "aborted");
        if (error.code == ErrorCode::deadline_exceeded) ++core_.counters().deadlines_passed;
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

void GenerationJob::begin(std::string& out) {
  if (begun_) return;
  begun_ = true;
  answer_->begin({.id = name_,
                  .created = Core::unix_seconds(),
                  .prompt_tokens = request_.prompt_tokens.value_or(0)},
                 out);
}

void GenerationJob::finish(const ApiError& error, std::string& out) {
  stage_ = Stage::over;
  ApiError shown = error;
  if (shown.code == "service_unavailable" && core_.phase() == Phase::draining) {
    shown.code = "server_shutting_down";
    shown.message = "the server is shutting down; try another one";
  }
  if (shown.status == 429 && core_.settings().overload_status == 503) shown.status = 503;
  if (shown.code == "rate_limit_exceeded" &&
      api::error_style(setup_.endpoint->path) == api::ErrorStyle::anthropic)
    shown.status = 529;
  if (shown.code == "rate_limit_exceeded") ++core_.counters().rejected_full;
  const bool told = stream_ && begun_;  // the client has a status already
  if (told) {
    answer_->fail(shown, out);
  } else {
    response_ = error_response(api::error_style(setup_.endpoint->path), shown);
  }
  report(shown.code.empty() ? std::string_view("error") : std::string_view(shown.code),
         told ? 200 : shown.status, &shown);
}

void GenerationJob::ping(std::string& out) {
  if (stage_ != Stage::running || !stream_) return;
  begin(out);
  answer_->ping(out);
  ++core_.counters().pings;
}

void GenerationJob::cancel_streams() {
  for (const ScoreChunk& run : active_chunks_)
    if (run.stream) setup_.serving->engine.cancel(run.stream);
  active_chunks_.clear();
  for (std::shared_ptr<OutputStream>& stream : streams_) {
    if (!stream) continue;
    setup_.serving->engine.cancel(stream);
    stream.reset();
  }
}

void GenerationJob::on_disconnect() {
  abandoned_.store(true);
  if (stage_ == Stage::over) return;
  cancel_streams();
  stage_ = Stage::over;
  report("abort", stream_ && begun_ ? 200 : 499);
}

void GenerationJob::abort_with_error() {
  aborted_.store(true);
  setup_.wake();
}

void GenerationJob::report(std::string_view finish, int status, const ApiError* error) {
  if (std::exchange(reported_, true)) return;
  core_.remove_job(name_);
  core_.count_response(setup_.endpoint->path, status);
  if (answer_) {
    const chat::OutputParser::Counts counts = answer_->parser_counts();
    core_.counters().tool_calls_unknown += counts.unknown_tools;
    core_.counters().tool_calls_malformed += counts.malformed_calls;
    core_.counters().tool_calls_mended += counts.mended_calls;
    core_.counters().reasoning_unclosed += counts.unclosed_reasoning;
  }
  if (!core_.settings().log_requests) return;
  const auto ms = [](std::int64_t us) {
    return fmt::format("{:.1f}", static_cast<double>(us) / 1e3);
  };
  const auto per_second = [](double rate) { return fmt::format("{:.1f}", rate); };
  std::vector<log::Field> fields{
      {"request_id", log::quoted(name_)},
      {"path", log::quoted(setup_.endpoint->path)},
      {"status", fmt::to_string(status)},
      {"finish", log::quoted(finish)},
  };
  if (error != nullptr) {
    fields.push_back({"code", error->code.empty() ? "null" : log::quoted(error->code)});
    fields.push_back({"param", error->param.empty() ? "null" : quoted_part(error->param)});
  }
  // Not before the reading is done, which the pool may do.
  const bool read = prepared_.load(std::memory_order_acquire);
  if (read && !request_.user.empty()) fields.push_back({"user", quoted_part(request_.user)});
  fields.push_back({"prompt_tokens", read && request_.prompt_tokens
                                         ? fmt::to_string(*request_.prompt_tokens)
                                         : "null"});
  if (answer_ && answer_->done() && error == nullptr) {
    const api::AnswerTotals& totals = answer_->totals();
    const Timings& timings = totals.timings;
    fields.push_back({"cached", fmt::to_string(totals.usage.cached_tokens)});
    fields.push_back({"completion_tokens", fmt::to_string(totals.usage.completion_tokens)});
    fields.push_back({"ttft_ms", ms(timings.queued_us + timings.prefill_us)});
    fields.push_back(
        {"tps", timings.decode_us >= kPaceUsMin ? per_second(totals.tokens_per_second()) : "null"});
  } else {
    // The engine's own account is not waited for: what came of it is told, the rest is unknown.
    const bool any = progress_.tokens > 0;
    const auto span_us = static_cast<double>(progress_.last_us - progress_.first_us);
    fields.push_back({"cached", "null"});
    fields.push_back({"completion_tokens", fmt::to_string(progress_.tokens)});
    fields.push_back({"ttft_ms", any ? ms(progress_.first_us - received_us_) : "null"});
    fields.push_back(
        {"tps", span_us >= kPaceUsMin
                    ? per_second(static_cast<double>(progress_.tokens - 1) * 1e6 / span_us)
                    : "null"});
  }
  fields.push_back({"total_ms", ms(core_.clock().now_us() - received_us_)});
  log::write(log::Level::info, "request", fields);
}

}  // namespace koho::server
