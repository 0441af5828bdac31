// SPDX-License-Identifier: Apache-2.0
#include "server/generation_job.h"

#include <utility>

#include <fmt/format.h>

#include "api/body.h"
#include "base/log.h"
#include "chat/json.h"

namespace koho::server {

using api::ApiError;

GenerationJob::GenerationJob(Core& core, Setup setup)
    : core_(core), setup_(std::move(setup)), received_us_(core.clock().now_us()) {
  ++core_.counters().requests_live;
}

GenerationJob::~GenerationJob() {
  --core_.counters().requests_live;
}

void GenerationJob::start(std::string body) {
  core_.add_job(setup_.id, shared_from_this());
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

void GenerationJob::prepare(const std::string& body) {
  if (!abandoned_.load()) refused_ = read(body);
  const bool compiles = !refused_ && request_.constraint.has_value() && !abandoned_.load();
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
      error.param = job.request_.constraint_field;
      if (const std::string_view code = grammar_error_code(status.error()); !code.empty())
        error.code = code;
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

/// The engine computes logits where it samples only. So each token of the prompt is asked for by a
/// request of its own: the prompt up to it (whose pages the prefix cache has), one greedy token,
/// and a bias that makes it the one we want. Log probabilities are those of the unbiased model.
void GenerationJob::begin_scoring() {
  constexpr std::size_t kScoredTokensMax = 16'384;
  std::size_t tokens = 0;
  for (const Request& one : request_.requests) {
    tokens += one.prompt.size();
    request_.prompt_logprobs.emplace_back(one.prompt.size() - 1);
  }
  if (tokens > kScoredTokensMax) {
    refused_ = api::wrong_field(
        "echo",
        fmt::format("echo with logprobs scores at most {} prompt tokens a request, found {}",
                    kScoredTokensMax, tokens));
    return;
  }
  stage_ = Stage::scoring;
}

void GenerationJob::score_prompts() {
  constexpr std::size_t kAtOnce = 32;
  constexpr float kBias = 100.0F;
  for (Score& score : scores_) {
    const Token wanted = request_.requests[score.prompt].prompt[score.position];
    api::PromptLogprob& logprob = request_.prompt_logprobs[score.prompt][score.position - 1];
    while (true) {
      const OutputStream::Read read = score.stream->poll(event_);
      if (read == OutputStream::Read::nothing) break;
      if (read == OutputStream::Read::event) {
        // A token that the bias does not lift above all others is less likely than these by more
        // than the bias: that is what can be said of it.
        logprob.logprob = event_.token == wanted ? event_.logprob : event_.logprob - kBias;
        logprob.top = event_.top;
        continue;
      }
      const Summary& summary = score.stream->summary();
      if (summary.ending == Ending::failed) refused_ = api::to_api_error(summary.error);
      score.stream.reset();
      break;
    }
  }
  std::erase_if(scores_, [](const Score& score) { return score.stream == nullptr; });
  while (!refused_ && scores_.size() < kAtOnce && next_prompt_ < request_.requests.size()) {
    const Request& whole = request_.requests[next_prompt_];
    if (next_position_ >= whole.prompt.size()) {
      ++next_prompt_;
      next_position_ = 1;
      continue;
    }
    Request one;
    one.prompt.assign(whole.prompt.begin(),
                      whole.prompt.begin() + static_cast<std::ptrdiff_t>(next_position_));
    one.sampling.temperature = 0.0;
    one.sampling.logprobs = *request_.output.logprobs;
    one.sampling.logit_bias = {{whole.prompt[next_position_], kBias}};
    one.max_tokens = 1;
    one.salt = whole.salt;
    one.priority = whole.priority;
    one.deadline_us = whole.deadline_us;
    Result<std::shared_ptr<OutputStream>> stream =
        setup_.serving->engine.submit(std::move(one), setup_.wake);
    if (!stream.ok()) {
      // A full queue has room again when some of ours have ended.
      if (stream.error().code == ErrorCode::resource_exhausted && !scores_.empty()) break;
      refused_ = api::to_api_error(stream.error());
      break;
    }
    scores_.push_back({std::move(*stream), next_prompt_, next_position_++});
  }
  if (refused_ || !scores_.empty() || next_prompt_ < request_.requests.size()) return;
  submit();
}

void GenerationJob::submit() {
  const api::Model& model = setup_.serving->model;
  stage_ = Stage::running;
  stream_ = request_.stream;
  answer_.emplace(model, request_, setup_.endpoint->respond(request_, model));
  for (Request& one : request_.requests) {
    prompt_tokens_ += static_cast<std::int64_t>(one.prompt.size());
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
  }
  if (stage_ == Stage::prepared) {
    if (!refused_ && !aborted_.load() && core_.phase() == Phase::draining)
      refused_ = api::to_api_error(make_error(ErrorCode::unavailable, "draining"));
    if (!refused_ && !aborted_.load()) {
      if (request_.scores_prompts()) {
        begin_scoring();
      } else {
        submit();
      }
    }
  }
  if (stage_ == Stage::scoring && !refused_ && !aborted_.load()) {
    score_prompts();
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
  answer_->begin(
      {.id = setup_.id, .created = Core::unix_seconds(), .prompt_tokens = prompt_tokens_}, out);
}

void GenerationJob::finish(const ApiError& error, std::string& out) {
  stage_ = Stage::over;
  ApiError shown = error;
  if (shown.code == "service_unavailable" && core_.phase() == Phase::draining) {
    shown.code = "server_shutting_down";
    shown.message = "the server is shutting down; try another one";
  }
  if (shown.status == 429 && core_.settings().overload_status == 503) shown.status = 503;
  if (shown.code == "rate_limit_exceeded") ++core_.counters().rejected_full;
  if (stream_ && begun_) {
    answer_->fail(shown, out);
  } else {
    response_ = error_response(setup_.endpoint->errors, shown);
  }
  report(shown.code.empty() ? std::string_view("error") : std::string_view(shown.code),
         shown.status);
}

void GenerationJob::ping(std::string& out) {
  if (stage_ != Stage::running || !stream_) return;
  begin(out);
  answer_->ping(out);
  ++core_.counters().pings;
}

void GenerationJob::cancel_streams() {
  for (const Score& score : scores_)
    if (score.stream) setup_.serving->engine.cancel(score.stream);
  scores_.clear();
  for (std::shared_ptr<OutputStream>& stream : streams_) {
    if (!stream) continue;
    setup_.serving->engine.cancel(stream);
    stream.reset();
  }
}

void GenerationJob::abandon() {
  abandoned_.store(true);
  if (stage_ == Stage::over) return;
  cancel_streams();
  stage_ = Stage::over;
  report("abort", 499);
}

void GenerationJob::withdraw() {
  aborted_.store(true);
  setup_.wake();
}

void GenerationJob::report(std::string_view finish, int status) {
  if (std::exchange(reported_, true)) return;
  core_.remove_job(setup_.id);
  core_.count_response(setup_.endpoint->path, status);
  if (answer_) {
    const chat::OutputParser::Counts counts = answer_->parser_counts();
    core_.counters().tool_calls_unknown += counts.unknown_tools;
    core_.counters().tool_calls_malformed += counts.malformed_calls;
    core_.counters().tool_calls_mended += counts.mended_calls;
    core_.counters().reasoning_unclosed += counts.unclosed_reasoning;
  }
  if (!core_.settings().log_requests) return;
  const api::Ended totals = answer_ ? answer_->totals() : api::Ended{};
  const Timings& timings = totals.timings;
  const auto ms = [](std::int64_t us) {
    return fmt::format("{:.1f}", static_cast<double>(us) / 1e3);
  };
  const log::Field fields[] = {
      {"request_id", log::quoted(setup_.request_id)},
      {"path", log::quoted(setup_.endpoint->path)},
      {"status", fmt::to_string(status)},
      {"finish", log::quoted(finish)},
      {"prompt_tokens", fmt::to_string(prompt_tokens_)},
      {"cached", fmt::to_string(totals.usage.cached_tokens)},
      {"completion_tokens", fmt::to_string(totals.usage.completion_tokens)},
      {"ttft_ms", ms(timings.queued_us + timings.prefill_us)},
      {"tps", fmt::format("{:.1f}", totals.tokens_per_second())},
      {"total_ms", ms(core_.clock().now_us() - received_us_)},
  };
  log::write(log::Level::info, "request", fields);
}

}  // namespace koho::server
