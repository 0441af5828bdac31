// SPDX-License-Identifier: Apache-2.0
#include "server/line_job.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "server/generation_job.h"

namespace koho::server {

LineJob::LineJob(Core& core, const ServedModel& serving, api::BatchLine line, Options options)
    : line_(std::move(line)) {
  GenerationJob::Setup setup;
  setup.endpoint = line_.endpoint;
  setup.serving = &serving;
  setup.id = core.make_id();
  setup.wake = std::move(options.wake);
  setup.key = std::move(options.key);
  setup.in_batch = true;
  setup.priority = options.priority;
  job_ = std::make_shared<GenerationJob>(core, std::move(setup));
  job_->start(line_.body);
}

LineJob::~LineJob() {
  if (job_) job_->on_disconnect();
}

bool LineJob::poll() {
  if (!job_) return true;
  std::string none;
  if (job_->poll(none, 1) != GenerationJob::State::answered) return false;
  request_id_ = job_->name();
  Response& response = job_->response();
  status_ = response.status;
  body_ = std::move(response.body);
  if (status_ == 200) {
    totals_ = job_->totals();
    cut_ = job_->is_cut();
  }
  for (const auto& [name, value] : response.fields)
    if ((status_ == 429 || status_ == 503) && name == "Retry-After")
      retry_after_s_ = std::max(parse_integer<std::int32_t>(value).value_or(1), 1);
  job_.reset();
  return true;
}

void LineJob::forgive() {
  if (job_) job_->forgive();
}

std::string LineJob::output() const {
  return api::batch_answer_line(line_, status_, request_id_, body_);
}

}  // namespace koho::server
